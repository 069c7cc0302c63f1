"""The first choice for a black box, beside methods of other libraries."""
