"""PostgreSQL tables as sources: captured without loss, and mirrored as Delta tables."""
