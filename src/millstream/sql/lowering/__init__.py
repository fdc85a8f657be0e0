"""Query trees to operators."""
