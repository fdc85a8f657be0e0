"""PostgreSQL's types and the texts of their values, as Spark types and Arrow columns."""
