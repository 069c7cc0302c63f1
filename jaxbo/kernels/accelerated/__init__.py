"""Kernels of our own for accelerators. Each has a plain function as its oracle and its fallback."""
