"""One file a method; what methods share is in `base`."""
