"""Models of a black box: what a method asks for samples, means and variances."""
