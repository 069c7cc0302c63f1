"""Objectives that fail, and values that are equal."""
