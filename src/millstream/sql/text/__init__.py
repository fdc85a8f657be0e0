"""Queries as text: with their tables exchanged for others, and with recursion split into loops."""
