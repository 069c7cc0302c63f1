"""Models of a black box, which a method asks for samples, means and variances."""
