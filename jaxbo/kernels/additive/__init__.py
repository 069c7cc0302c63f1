"""Additive processes: sums of functions of a few variables each."""
