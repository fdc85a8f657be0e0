"""Where results go: applying a stage's change to its stored table."""
