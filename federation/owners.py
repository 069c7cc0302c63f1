"""Owners of handwriting samples tune an SVM together: the app of the server and of every owner.

For a problem of your own, put your objective here, and give owners no key: then nobody can tell what
they draw. Here the key is given so that the run can be compared to simulations.
"""

import functools

import jax.random as jr

from jaxbo import demo
from jaxbo.federation import flower

OWNERS, ROUNDS, DEADLINE = 5, 6, 120.0
KEY = jr.key(0)

METHOD = "learned prior (federated)"
algorithm = demo.methods(OWNERS, ROUNDS)[METHOD]
objective = functools.partial(demo.accuracy, OWNERS)  # (owner, x) → accuracy, on its own digits

client = flower.client_app(algorithm, objective, key=KEY)
server = flower.server_app(algorithm, ROUNDS, KEY, initial=demo.INITIAL, deadline=DEADLINE)
