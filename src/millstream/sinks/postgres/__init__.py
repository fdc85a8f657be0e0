"""A stream table's result as a real table of a PostgreSQL database: created, kept up to date, and accounted for."""
