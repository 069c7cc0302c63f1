"""A prior that agents learn together, against working alone and against methods that send functions."""
