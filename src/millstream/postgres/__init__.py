"""What capture and serving need alike in a PostgreSQL database: names that stay, objects for nobody else, one at a time."""
