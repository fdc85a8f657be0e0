"""Capture from the write-ahead log: slot, publication, and the decoded changes."""
