"""The maximum of a sum of tables: factor graphs, max-sum, elimination."""
