"""Capture from the write-ahead log: slot, publication, and the changes it decodes."""
