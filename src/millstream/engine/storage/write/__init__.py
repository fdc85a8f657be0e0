"""Commits to a Delta table that are written directly, without Delta's connector."""
