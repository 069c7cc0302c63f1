"""
A factor graph and its messages
===============================

Messages maximize a sum of tables of two variables each. A line is wider the more its message tells. Below
a variable is the sum of its messages, and the dot is the best of its six values.
"""

import jax.random as jr

import jaxbo
from jaxbo.kernels.factors import maxsum
from jaxbo.kernels.factors.graph import FactorGraph

scopes = [(0, 1), (1, 2), (2, 3), (2, 4), (4, 5)]
graph = FactorGraph([6] * 6, scopes)
scales = [1, 3, 1, 2, 1]
tables = [scale * jr.normal(jr.key(i), (6, 6)) for i, scale in enumerate(scales)]
messages, _ = maxsum.settle(graph, graph.pack(tables), damping=0.0)
ax = jaxbo.plotting.factor_graph(graph, messages=messages)
