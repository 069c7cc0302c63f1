"""Experiments of ensembles of Gaussian processes."""
