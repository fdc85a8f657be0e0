"""Delta rules: from a query's operators to the operators that compute its change."""
