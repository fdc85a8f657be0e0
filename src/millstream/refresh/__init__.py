"""One refresh of one stream table: its inputs, the choice, the computation, and recovery."""
