"""The measurements of max-sum: that what answers are compared with is the maximum."""

import functools
import itertools

import jax
import numpy as np
import pytest

from bench.common.timing import Figure, checked
from bench.speed import maxsum, prior_population, prior_rounds
from jaxbo.kernels.factors import graph as factor_graph


def test_the_maximum_that_answers_are_compared_with_is_that_of_all_points(key):
    pytest.importorskip("pytoulbar2")
    shape = factors, _, variables, points = 6, 2, 4, 3
    graph, tables = maxsum._graph(key, shape)
    every = np.array(list(itertools.product(range(points), repeat=variables)), np.int32)
    sums = jax.vmap(functools.partial(factor_graph.value, graph, tables))(every)
    most = maxsum.exact(graph, tables)
    assert abs(most - float(sums.max())) <= factors * maxsum.DIGIT


@pytest.mark.full
def test_a_chain_is_timed_both_ways(key):
    (figure,) = maxsum.chain_figures(key, repeats=1, variables=5, points=3)
    assert figure.name.startswith("a chain of 5 variables on 3 points")
    assert figure.value > 0
    assert figure.ratio is not None


@pytest.mark.parametrize(
    ("figure", "outcome"),
    [
        (Figure("time", 3.0, "s", goal="<= 4"), "holds"),
        (Figure("time", 5.0, "s", goal="<= 4"), "refuted"),
        # The goal is about the ratio, and the times behind the figure are no sample.
        (Figure("time", 5.0, "s", "a", 30.0, ">= 20 x", (5.0, 9.0)), "holds"),
        (Figure("time", 5.0, "s", "a", 30.0, ">= 50x", (5.0, 9.0)), "refuted"),
        (Figure("error", 1.0, "", goal="<= 2", values=(0.9, 1.0, 1.1), sample="mean"), "holds"),
        (Figure("error", 1.0, "", goal="<= 1", values=(0.9, 1.0, 1.1), sample="mean"), "undecided"),
        (Figure("gap", 0.5, "", goal="<= 2", values=(0.5,) * 9, sample="median"), "holds"),
    ],
)
def test_a_goal_is_about_the_figure_the_ratio_or_a_sample(figure, outcome):
    assert figure.check().outcome == outcome
    assert figure.cells()[-1] == {"holds": "✓", "refuted": "✗", "undecided": "?"}[outcome]
    assert checked([figure, Figure("no goal", 1.0, "s")]) == {
        f"{figure.name}, {figure.goal}": figure.check()
    }


def test_a_share_is_judged_in_percent():
    figure = Figure("found", 100.0, "%", goal=">= 99", values=(100.0,) * 300, sample="share")
    check = figure.check()
    assert (check.outcome, check.figure, check.margin[0]) == ("undecided", 100.0, 99.0)
    assert check.interval == pytest.approx((98.78, 100.0), abs=0.01)


@pytest.mark.full
def test_rounds_of_the_learned_prior_are_timed_beside_those_of_fts():
    methods = prior_rounds.methods(agents=3, size=8, candidates=8)
    few = {name: methods[name] for name in ("FTS", "any covariance, Thompson")}
    took = prior_rounds.measured(few, repeats=2)
    assert list(took) == list(few)
    assert all((times > 0).all() for times in took.values())


@pytest.mark.full
def test_a_population_that_learns_a_prior_is_timed_and_finds_its_optima():
    found = prior_population.measured(agents=12, rounds=8, chunk=5, size=20, candidates=60)
    assert min(found.compile, found.seconds, found.memory, found.state) > 0
    assert found.message == 4 * (21 + 4 + 2 * 21 * 11)  # D + 4 + 2 D (r + 1) numbers
    assert -0.05 < found.last < 0.05
