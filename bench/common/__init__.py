"""What experiments of several rooms share, beside their objectives (`bench.tasks`)."""
