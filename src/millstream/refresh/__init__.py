"""Evaluates a plan: frontier, locks, recovery."""
