"""PostgreSQL tables as sources: reached, captured without loss, and landed as Delta tables."""
