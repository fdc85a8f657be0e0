"""Reading a Delta log: its files, its actions, a table's state, and what a range of versions did."""
