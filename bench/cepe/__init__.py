"""Experiments of collaborative exploration and personalized exploitation."""
