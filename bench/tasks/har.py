"""30 people's movements, and the numbers that the papers tune on them (`logistic`): 6 activities, 561
features.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.tasks.data import load
from bench.tasks.logistic import Ranges, Training, training
from jaxbo.types import Count, Point, Scalar

SUBJECTS, CLASSES = 30, 6
#: What DP-FTS-DE tunes, and what FTS does.
DP_FTS_DE = Ranges(batch=(128, 512), l2=(1e-6, 10), rate=(1e-6, 1))
FTS = Ranges(batch=(20, 60), l2=(1e-6, 1), rate=(0.01, 0.1))

#: How many shuffles of the batches a score without noise is the mean of.
SHUFFLES = 8


@functools.cache
def movements(ranges: Ranges) -> Training:
    """The objective. `DataMissingError` without the file."""
    data = load("uci_har.npz")
    people = [np.flatnonzero(data["subject"] == subject + 1) for subject in range(SUBJECTS)]
    windows = [(data["X"][rows], data["y"][rows].astype(np.int32) - 1) for rows in people]
    return training(windows, CLASSES, ranges, products=True)


@functools.cache
def mean_share(ranges: Ranges) -> Callable[[Count, Point], Scalar]:
    """The objective's mean over shuffles, of a person at a point: a compiled function."""
    objective, keys = movements(ranges), jr.split(jr.key(0), SHUFFLES)

    def mean(person: Count, x: Point) -> Scalar:
        return jnp.mean(jax.vmap(lambda key: objective(key, person, x))(keys))

    return jax.jit(mean)
