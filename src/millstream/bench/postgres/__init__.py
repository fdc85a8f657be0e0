"""What PostgreSQL costs: capture in the application's statements, the way to a served table, polls, first loads."""
