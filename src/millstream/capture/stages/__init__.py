"""The stages of a tick, in their order; each takes what it needs as arguments and gives the state it has made."""
