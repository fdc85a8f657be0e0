"""Monitoring: the freshness of captured tables and the health of capture."""
