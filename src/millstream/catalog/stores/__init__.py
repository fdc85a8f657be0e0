"""The statements that write, one module per kind of record; each function runs inside its caller's transaction.

If a transaction needs the row of `lake` (for its generation or a refresh id), it locks it first: with this one order,
no two transactions of a PostgreSQL catalog wait for each other.
"""
