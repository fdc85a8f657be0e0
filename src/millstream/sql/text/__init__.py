"""Queries as text: with their tables replaced by others, and with recursion split into loops."""
