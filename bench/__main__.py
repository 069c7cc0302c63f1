"""`python -m bench NAME [--only PROBLEM] [--runs N] [--rounds N] [--seed S] [--out DIR] [--quick]`, or `--list`."""

# Worker processes import this module under another name: nothing may happen then, and soon.
if __name__ == "__main__":
    import sys

    from bench.runner import main

    sys.exit(main())
