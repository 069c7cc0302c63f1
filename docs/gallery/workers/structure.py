"""
A structure that DEC-HBO learns
===============================

The function is a sum of a term of the first two variables, and of a term of the other two. After forty
evaluations, the model gives each term a factor, beside a factor for every variable.
"""

import jax
import jax.random as jr

import jaxbo
from jaxbo.kernels.factors.graph import FactorGraph

cube = jaxbo.Cube(4)
x = jr.uniform(jr.key(0), (40, 4))
y = jax.numpy.sin(9 * x[:, 0] * x[:, 1]) + jax.numpy.sin(9 * x[:, 2] * x[:, 3])

structure = jaxbo.Sampled(count=1, factors=2, steps=300)
model = jaxbo.Decomposed(structure, capacity=40, grid=8)
shared = model.over(cube, jr.key(1))
learn = lambda belief, row: (model.condition(shared, belief, *row), None)
fit = lambda: model.refit(shared, jax.lax.scan(learn, model.start(shared), (x, y))[0])
scopes = jax.jit(fit)().whole.kernel.scopes[0]
factors = {tuple(sorted(v for v in scope if v >= 0)) for scope in scopes.tolist()} - {()}
ax = jaxbo.plotting.factor_graph(FactorGraph([2] * 4, sorted(factors)))
