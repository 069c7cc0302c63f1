"""The experiment that compares the first choice for a black box with methods of other libraries."""
