"""All rows of a table as of one snapshot."""
