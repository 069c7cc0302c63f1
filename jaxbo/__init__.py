"""A JAX functional core for Bayesian optimization by many agents."""

__version__ = "0.1.0"
