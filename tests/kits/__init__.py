"""What tests share: lakes, databases, processes, oracles and the cases that several of them run."""
