"""Where the arguments of objectives come from: points of a cube, finite sets, named parameters."""
