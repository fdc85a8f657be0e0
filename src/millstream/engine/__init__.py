"""Spark and Delta: sessions, tables, running plans."""
