"""The property-test kit: random tables and changes, and the delta plan run on DuckDB in process."""
