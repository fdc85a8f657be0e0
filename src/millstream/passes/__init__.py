"""A pass: captures, refreshes and serves a set of stream tables at one frontier."""
