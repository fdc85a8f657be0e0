"""Capture by triggers: the objects it installs, and the changes it reads from buffers."""
