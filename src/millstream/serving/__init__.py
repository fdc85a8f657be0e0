"""Stream tables kept as real tables of a PostgreSQL database: declared, and brought to each new version."""
