"""The papers' experiments and the speed measurements: `python -m bench NAME`.

One file an experiment: a module here with an `EXPERIMENT` (`runner.Experiment`) is run by its file's
name, with hyphens for underscores.
"""
