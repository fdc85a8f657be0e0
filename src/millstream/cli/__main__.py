"""`python -m millstream.cli`: the command line where the `millstream` script is not on the path."""

import sys

from millstream.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
