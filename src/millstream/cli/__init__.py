"""The `millstream` command line: a rim around the service facade, with text for people and `--json` for programs."""
