"""Experiments in many dimensions."""
