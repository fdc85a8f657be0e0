"""Calls of a lake's running process by other processes: where it listens, the wire format, and the client."""
