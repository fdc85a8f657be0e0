"""What capture and serving need alike in a PostgreSQL database: names that stay, closed objects, and taking turns."""
