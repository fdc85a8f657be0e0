"""What PostgreSQL costs: capture in the application's statements, latency to a served table, ticks, first loads."""
