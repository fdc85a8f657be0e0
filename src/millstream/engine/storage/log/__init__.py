"""Reading a Delta log: its files, its actions, a table's state, and what happened in a range of versions."""
