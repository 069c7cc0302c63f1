"""`python -m bench NAME [--runs N] [--rounds N] [--seed S] [--out DIR] [--quick]`, or `--list`."""

import sys

from bench.runner import main

# Worker processes import this module under another name: they must not start the experiment again.
if __name__ == "__main__":
    sys.exit(main())
