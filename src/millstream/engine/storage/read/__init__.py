"""Rows of a Delta table: scanned, looked up, and as the changes between two versions."""
