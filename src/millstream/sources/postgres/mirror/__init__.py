"""The Delta tables that hold the captured columns of PostgreSQL tables."""
