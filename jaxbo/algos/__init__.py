"""A file a method; code that methods share is in `base`."""
