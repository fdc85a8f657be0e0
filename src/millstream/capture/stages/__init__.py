"""The stages of a tick, in order; each takes its inputs as arguments and returns the state it has made."""
