"""Data and objectives of the experiments."""
