"""Delta tables through Spark and Delta's own connector."""
