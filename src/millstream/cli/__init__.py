"""The `millstream` command line: a thin layer over the service facade; text for people, `--json` for programs."""
