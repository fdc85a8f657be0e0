"""Commits to a Delta table, written directly, without Delta's connector."""
