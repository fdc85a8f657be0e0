"""Keeps the storage of a lake small, in bounded bites beside the refreshes."""
