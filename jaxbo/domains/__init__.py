"""The domains of objectives: points of a cube, finite sets, named parameters."""
