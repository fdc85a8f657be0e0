"""What running costs: an idle lake, and what a user sees of a busy one."""
