"""SQL that is refused, with a code, a position and a suggested rewrite."""
