"""`python -m bench NAME`, `--list` or `report`; `--help` shows the other options."""

# Worker processes import this module under another name: nothing may happen then, and soon.
if __name__ == "__main__":
    import sys

    words = sys.argv[1:]
    if words[:1] == ["report"]:
        from bench.report import main

        words = words[1:]
    else:
        from bench.runner import main

    sys.exit(main(words))
