"""Parts that experiments of several rooms share, beside their objectives (`bench.tasks`)."""
