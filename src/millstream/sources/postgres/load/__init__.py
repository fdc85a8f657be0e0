"""Reads all rows of a table as of one snapshot."""
