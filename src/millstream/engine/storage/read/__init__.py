"""Reading rows of a Delta table: scans, lookups, and the changes between two versions."""
