"""
Parallel coordinates
====================

Every evaluation is a line through its parameters. A forest has no rate, so its line ends before that
axis. A net of eight layers fails at a high rate.
"""

import math
import warnings

import jax.random as jr

import jaxbo

rate = jaxbo.Real(1e-4, 1.0, log=True).when(model="net")
space = jaxbo.Space(model=jaxbo.Categorical("forest", "net"), depth=jaxbo.Integer(1, 8), rate=rate)


def loss(agent, p):
    if p["depth"] >= 7 and p.get("rate", 0) > 0.01:
        return math.nan
    miss = math.log10(p["rate"]) + 2 if "rate" in p else 1.5
    return miss**2 + 0.2 * (p["depth"] - 5) ** 2


method = jaxbo.RandomSearch(space)
with warnings.catch_warnings(action="ignore"):  # a warning tells of each failure
    _, trace = jaxbo.drive(method, loss, 40, jr.key(0), direction="minimize", progress=False)
ax = jaxbo.plotting.parallel(trace, domain=space)
