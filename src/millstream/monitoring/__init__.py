"""What an operator asks of a lake: how fresh captured tables are, and how capture is doing."""
