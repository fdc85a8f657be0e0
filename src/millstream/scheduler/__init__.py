"""What is refreshed when, in which order, and what follows from a failure. Pure: no clock, no Spark, no database."""
