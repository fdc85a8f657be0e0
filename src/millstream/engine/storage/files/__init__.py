"""Data files and deletion vectors, and the schemas and casts of their columns."""
