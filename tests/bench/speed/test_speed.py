"""The measurements of max-sum: that what answers are compared with is the maximum."""

import functools
import itertools

import jax
import numpy as np
import pytest

from bench.speed import maxsum
from jaxbo.kernels.factors import graph as factor_graph


def test_the_maximum_that_answers_are_compared_with_is_that_of_all_points(key):
    pytest.importorskip("pytoulbar2")
    shape = factors, _, variables, points = 6, 2, 4, 3
    graph, tables = maxsum._graph(key, shape)
    every = np.array(list(itertools.product(range(points), repeat=variables)), np.int32)
    sums = jax.vmap(functools.partial(factor_graph.value, graph, tables))(every)
    most = maxsum.exact(graph, tables)
    assert abs(most - float(sums.max())) <= factors * maxsum.DIGIT


def test_a_chain_is_timed_both_ways(key):
    (figure,) = maxsum.chain_figures(key, repeats=1, variables=5, points=3)
    assert figure.name.startswith("a chain of 5 variables on 3 points")
    assert figure.value > 0
    assert figure.ratio is not None
