"""What the server says of its tables: definitions, fingerprints, rights, snapshots, and answers to queries."""
