"""Errors of wrong calls say the argument, the value that came, and the line to write."""

import collections
import functools
import inspect

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.policy import AbstractPolicy
from jaxbo.kernels.factors import maxsum
from jaxbo.kernels.factors.graph import FactorGraph
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.kernels.processes import gp, posterior
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.schedules import AbstractSchedule

pytestmark = pytest.mark.usefixtures("as_users_have_it")

KEY = jr.key(0)
RANDOM = jaxbo.RandomSearch(jaxbo.Cube(2), agents=2)
WORKER = jaxbo.EGP(jaxbo.Cube(2), jaxbo.Fixed(size=4, capacity=9), jaxbo.Thompson(), candidates=8)
SPACE = jaxbo.Space(C=jaxbo.Real(0.1, 10.0, log=True), n=jaxbo.Integer(1, 40))
BY_NAME = jaxbo.RandomSearch(SPACE, agents=2)
BELIEF = posterior.prior(8, 0.1)
PROCESS = gp.empty(SquaredExponential(0.3), 0.1, 4, 2)
IN_PYTHON = ["objective is compiled here", "jax.numpy", "give f(agent, x) to jaxbo.drive", "traced"]
PAIRS = FactorGraph([5, 5], [(0, 1)])
quiet = functools.partial(jaxbo.drive, progress=False)


def compiled(key, agent, x):
    return -jnp.sum(x**2)


def host(agent, x):
    return float(x[0])


def takes(key, worker, x):
    return jnp.ones(())


def half(state):
    """In another precision."""
    cast = lambda leaf: leaf.astype(jnp.float16) if leaf.dtype.kind == "f" else leaf  # noqa: E731
    return jax.tree.map(cast, state)


LOOPS = {
    "run": lambda algorithm=RANDOM, objective=compiled, key=KEY, **rest: jaxbo.run(
        algorithm, objective, 1, key, **rest
    ),
    "drive": lambda algorithm=RANDOM, objective=host, key=KEY, **rest: quiet(
        algorithm, objective, 1, key, **rest
    ),
    "simulate": lambda algorithm=WORKER, objective=compiled, key=KEY: jaxbo.simulate(
        algorithm, objective, takes, 1, key
    ),
    "drive_async": lambda algorithm=WORKER, objective=host, key=KEY: jaxbo.drive_async(
        algorithm, objective, 1, key, executor=None
    ),
    "Desk": lambda algorithm=WORKER, key=KEY: jaxbo.Desk(algorithm, key),
    "replay": lambda algorithm=RANDOM, key=KEY: jaxbo.replay(
        algorithm, jaxbo.Trace(jnp.zeros((0, 2, 2)), jnp.zeros((0, 2)), ()), key
    ),
}
WITH_OBJECTIVE = [name for name in LOOPS if name not in ("Desk", "replay")]


def refused(call, *words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("key", "words"),
    [
        (0, ["key must be a random key", "got 0", "give jax.random.key(0)"]),
        (np.int32(7), ["got 7", "give jax.random.key(7)"]),
        (None, ["got None", "give jax.random.key(0)"]),
        ("seed", ["got 'seed'", "jax.random.key"]),
        (np.zeros(3), ["got ndarray", "jax.random.key"]),
        (jr.split(KEY, 3), ["one key", "(3,)", "jax.vmap"]),
    ],
)
def test_what_is_no_key_is_refused_with_the_call_that_makes_one(loop, key, words):
    refused(lambda: LOOPS[loop](key=key), *words)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (compiled, ["the function compiled", "the algorithm comes first"]),
        (None, ["got None"]),
        (3.5, ["got 3.5"]),
        (jaxbo.RandomSearch, ["the class RandomSearch", "make one"]),
        (jaxbo.EI(), ["got EI"]),
    ],
)
def test_what_is_no_algorithm_is_named(loop, algorithm, words):
    refused(lambda: LOOPS[loop](algorithm), "algorithm must be", *words)


@pytest.mark.parametrize("loop", WITH_OBJECTIVE)
@pytest.mark.parametrize(
    ("objective", "word"), [(None, "None"), (3.5, "3.5"), (RANDOM, "RandomSearch")]
)
def test_what_is_no_objective_is_named(loop, objective, word):
    refused(lambda: LOOPS[loop](objective=objective), "objective must be a function", word)


@pytest.mark.parametrize("loop", ["run", "drive"])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([1.0], ["another algorithm", "FederatedState of RandomSearch", "got [1.0]"]),
        (3, ["another algorithm", "got 3"]),
        (RANDOM, ["another algorithm", "got RandomSearch"]),
        (jaxbo.RandomSearch(jaxbo.Cube(2), 3).init(KEY), ["number of agents", "(3,", "(2,"]),
        (half(RANDOM.init(KEY)), ["another precision", "float16", "jax_enable_x64"]),
    ],
    ids=["list", "number", "algorithm", "agents", "precision"],
)
def test_a_wrong_state_says_what_differs(loop, state, words):
    refused(lambda: LOOPS[loop](state=state), "state is of", *words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: jaxbo.Space([jaxbo.Real(0, 1)]), ["by name", "[Real(", "Space(x=Real("]),
        (lambda: jaxbo.Space(jaxbo.Real(0, 1)), ["by name", "Real(", "Space(x=Real("]),
        (lambda: jaxbo.Space(c=jaxbo.Real("1e-3", "1e3")), ["'c'", "numbers", "'1e-3'"]),
        (lambda: jaxbo.Space(c=jaxbo.Integer("1", 3)), ["'c'", "whole numbers", "'1'"]),
        (lambda: jaxbo.Space(c=jaxbo.Integer(0, 2**40)), ["'c'", "int32", str(2**40)]),
        (lambda: SPACE.encode([1, 2]), ["dictionary", "[1, 2]"]),
        (lambda: SPACE.encode(3), ["dictionary", "3"]),
        (lambda: jaxbo.run(BY_NAME, lambda k, a, p: p["C"], 1, KEY), ["p = space.unpack(x)"]),
        (lambda: jaxbo.run(RANDOM, lambda x: float(x[0]), 1, KEY), IN_PYTHON),
        (lambda: jaxbo.run(RANDOM, lambda x: 1.0 if x[0] > 0 else 0.0, 1, KEY), IN_PYTHON),
        (lambda: jaxbo.run(RANDOM, lambda x: np.sin(x)[0], 1, KEY), IN_PYTHON),
        (lambda: jaxbo.drive(RANDOM, lambda key, agent, x: float(x[0]), 1, KEY), IN_PYTHON),
        (lambda: jaxbo.Fixed(noise=""), ["noise:", "number", "''"]),
        (lambda: jaxbo.Fixed(noise=None), ["noise:", "number", "None"]),
        (lambda: SquaredExponential("0.3"), ["length_scale:", "'0.3'"]),
        (lambda: SquaredExponential(0.3, [1.0, "x"]), ["variance:", "'x'"]),
        (lambda: jaxbo.UCB(""), ["beta:", "''"]),
        (lambda: jaxbo.Cube(True), ["dim", "whole number", "True"]),
        (lambda: jaxbo.Cube(2.0), ["dim", "whole number", "2.0"]),
        (lambda: jaxbo.Cube(2**31), ["dim", "32 bits", str(2**31)]),
        (lambda: jaxbo.RandomSearch(jaxbo.Cube(1), 2**31), ["agents", "32 bits", str(2**31)]),
        (lambda: jaxbo.run(RANDOM, compiled, 2**31, KEY), ["rounds", "32 bits", str(2**31)]),
        (lambda: jaxbo.Fixed(size=2**40), ["size", "32 bits", str(2**40)]),
        (lambda: jaxbo.Regions.of(2, 10**30), ["count", "32 bits", str(10**30)]),
        (lambda: jaxbo.Regions.of(10**30, 2), ["dim", "32 bits", str(10**30)]),
        (lambda: jaxbo.Regions.of(True, 2), ["dim", "True"]),
        (
            lambda: posterior.condition(BELIEF, jnp.ones(7), jnp.ones(())),
            ["phi must have shape (8,)", "(7,)"],
        ),
        (
            lambda: posterior.condition(BELIEF, jnp.ones((3, 8)), jnp.ones(3)),
            ["phi must have shape (8,)", "(3, 8)", "condition_all"],
        ),
        (
            lambda: posterior.condition(BELIEF, jnp.ones(8), jnp.ones(3)),
            ["y must have shape ()", "(3,)"],
        ),
        (lambda: posterior.predict(BELIEF, jnp.ones(9)), ["phi must have shape (8,)", "(9,)"]),
        (lambda: gp.predict(PROCESS, jnp.ones(3)), ["x must have shape (2,)", "(3,)"]),
        (
            lambda: gp.append(PROCESS, jnp.ones((1, 2)), jnp.ones(1)),
            ["x must have shape (2,)", "(1, 2)"],
        ),
        (lambda: maxsum.solve(PAIRS, (jnp.zeros((5, 5)),)), ["(1, 5, 5)", "graph.pack(tables)"]),
        (
            lambda: RANDOM.warm_start(RANDOM.init(KEY), [[[0.1], [0.2, 0.3]]], [[1.0, 2.0]]),
            ["the points must be real numbers", "one row as long as the other"],
        ),
        (
            lambda: RANDOM.warm_start(RANDOM.init(KEY), [[["a", 0.1], [0.2, 0.3]]], [[1.0, 2.0]]),
            ["points must be (points, values)", "got list"],
        ),
        (
            lambda: RANDOM.warm_start(RANDOM.init(KEY), [[0.1, 0.2]], [[1.0, 2.0]]),
            ["points of shape (points, 2, 2)", "got (1, 2)"],
        ),
    ],
)
def test_a_wrong_call_names_the_argument_and_what_came(call, words):
    refused(call, *words)


class NoKernel(AbstractKernel):
    """Without its methods."""


class NoPolicy(AbstractPolicy):
    """Without its methods."""


class NoMethod(AbstractFederated):
    """Without its functions."""


class NoSurrogate(AbstractSurrogate):
    """Without its methods."""


class NoDomain(AbstractDomain):
    """Without its methods."""


class NoSchedule(AbstractSchedule):
    """Without a value."""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NoKernel, ["correlation(self, s)", "squared distance", "mixing(self, key, count)"]),
        (NoPolicy, ["check(self, surrogate)", "random(self)", "__call__(self, key"]),
        (NoMethod, ["aggregate(", "choose(", "learn("]),
        (NoSurrogate, ["condition("]),
        (NoDomain, ["sample(self, key, count)", "project("]),
        (NoSchedule, ["__call__(self, t)"]),
    ],
)
def test_a_subclass_without_its_methods_is_told_which_and_where_a_guide_is(kind, words):
    with pytest.raises(TypeError) as caught:
        kind()
    for word in (f"{kind.__name__} cannot be made", *words, "CONTRIBUTING.md", "tests/examples"):
        assert word in str(caught.value)


def test_a_row_of_a_table_is_encoded_like_a_dictionary():
    pd = pytest.importorskip("pandas")
    values = {"C": 3.0, "n": 23}
    np.testing.assert_array_equal(SPACE.encode(pd.Series(values)), SPACE.encode(values))
    np.testing.assert_array_equal(SPACE.encode(collections.UserDict(values)), SPACE.encode(values))


def test_a_desk_in_the_place_of_known_results_is_told_of_its_table():
    desk = jaxbo.Desk(WORKER, KEY)
    refused(lambda: jaxbo.Desk(WORKER, KEY, known=desk), "got Desk", "give its table()")


def test_a_warm_start_takes_lists():
    points, values = [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]], [[1, 2], [3, np.nan]]
    start = RANDOM.init(KEY)
    of_lists = RANDOM.warm_start(start, points, values)
    of_arrays = RANDOM.warm_start(start, jnp.asarray(points), jnp.asarray(values, float))
    same = jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), of_lists, of_arrays)
    assert all(jax.tree.leaves(same))


def test_a_probability_alone_is_a_schedule():
    mixed = jaxbo.FTS(jaxbo.Cube(2), agents=2, mixing=0.5)
    assert float(mixed.mixing(jnp.asarray(3))) == 0.5


def test_rounds_that_are_not_recorded_are_told_of():
    with pytest.warns(RuntimeWarning, match="last 1 of 7 rounds is not recorded.*every=3"):
        jaxbo.run(RANDOM, compiled, 7, KEY, every=3)
    jaxbo.run(RANDOM, compiled, 6, KEY, every=3)


def test_pictures_need_no_import_of_their_own():
    assert callable(jaxbo.plotting.progress)


@pytest.mark.parametrize(
    "loop", [jaxbo.run, jaxbo.drive, jaxbo.simulate, jaxbo.drive_async, jaxbo.replay]
)
def test_help_shows_names_of_types(loop):
    text = str(inspect.signature(loop))
    assert "jaxtyping" not in text
    assert "key: 'Key'" in text
    assert len(text) < 700


@pytest.mark.parametrize(
    "stop", [jaxbo.stopping.Target, lambda: True, lambda trace, row: True, 0.9, "soon"]
)
def test_a_rule_that_cannot_be_asked_is_refused_before_work_starts(stop):
    refused(
        lambda: quiet(RANDOM, host, 1, KEY, stop=stop), "stop must be a function", "Target(0.9)"
    )


def test_arguments_that_are_made_into_numbers_are_named():
    cube = jaxbo.Cube(2)
    refused(lambda: jaxbo.FTS(cube, 2, peers="a"), "peers", "'a'")
    refused(lambda: jaxbo.FTS(cube, 2, mixing=2.0), "mixing", "[0, 1]")
    refused(lambda: jaxbo.CEPE(cube, 2, [1, 1], noise="a"), "noise", "'a'")
    refused(lambda: jaxbo.Ledger(1e-5, "a"), "budget", "'a'")
    refused(lambda: jaxbo.Mechanism(1.0, 1.0, 0.25), "sampling", "Poisson(q)", "got 0.25")
    refused(lambda: jaxbo.LearnedPrior(cube, 2, trust="a"), "trust", "'a'")
    refused(lambda: jaxbo.Space(p=jaxbo.Real(0, 1, log="no")), "log must be True or False", "'no'")
    refused(lambda: jaxbo.Desk(WORKER, KEY).ask(context=12), "context", "dictionary", "12")
    refused(lambda: jaxbo.Desk(WORKER, KEY, known=([[0.1, 0.2]], None)), "values", "None")
