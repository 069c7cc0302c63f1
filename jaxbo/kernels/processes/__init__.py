"""Gaussian processes: covariances, Fourier features, posteriors, sketches."""
