"""Runs of a method: compiled, driven from Python, by workers, and their files."""
