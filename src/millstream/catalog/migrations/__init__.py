"""The numbered steps that bring a catalog up to date: the tuple below is the only registry.

A step is a module `vNNNN_what` with `upgrade(connection, root)`, where `root` is the lake's directory, or None if the
caller does not know it. A released step is never changed.
"""

from millstream.catalog.migrations import v0001_initial, v0002_postgres, v0003_relative_paths, v0004_running

MIGRATIONS = (v0001_initial, v0002_postgres, v0003_relative_paths, v0004_running)
