"""When stream tables are refreshed: schedules, and the graph that orders them."""
