"""What the server reports about its tables: definitions, fingerprints, rights, snapshots, and query results."""
