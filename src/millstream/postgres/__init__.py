"""What capture and serving both need in a PostgreSQL database: stable names, closed objects, and DDL in turns."""
