"""The front end: parse, bind, validate, rewrite, lower to operators."""
