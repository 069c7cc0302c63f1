"""A run's identity: what it is made of and not how it is printed, the same in every process."""

import dataclasses
import enum
import functools
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbo.algos.egp import EGP
from jaxbo.algos.fts import FTS
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import Matern52
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._identity import check_same, identity, whole
from tests.runs.driven import environment


class Addressed:
    """Prints its address, as objects do that say nothing else."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, t):
        return self.scale


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


class Circle:
    def __init__(self):
        self.itself = self


class Relation(enum.Enum):
    ADD = 1
    REPLACE = 2


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def halving(t):
    return 0.5**t


def scaled(factor):
    return lambda t: factor * t


def of(part):
    return identity(part=part)


#: Pairs of things that differ in what they do.
OTHERS = {
    "functions": (lambda t: 0.5, lambda t: 0.9),
    "what a function encloses": (scaled(0.5), scaled(0.9)),
    "a name and a closure": (halving, scaled(0.5)),
    "defaults": (lambda t, a=1: a, lambda t, a=2: a),
    "keyword defaults": (lambda t, *, a=1: a, lambda t, *, a=2: a),
    "what is bound": (functools.partial(max, 1), functools.partial(max, 2)),
    "built in": (len, max),
    "objects": (Addressed(1), Addressed(2)),
    "slots": (Slotted(1), Slotted(2)),
    "methods": (Addressed(1).__call__, Addressed(2).__call__),
    "classes": (Addressed, Slotted),
    "members": (Relation.ADD, Relation.REPLACE),
    "signs of zero": (0.0, -0.0),
    "numbers and text": (1, "1"),
    "true and one": (True, 1),
    "whole and real": (1, 1.0),
    "complex": (1 + 2j, 1 + 3j),
    "text and bytes": ("a", b"a"),
    "ranges": (range(3), range(4)),
    "slices": (slice(1), slice(2)),
    "sets": ({1, 2}, {1, 3}),
    "places": ([1, 2], [2, 1]),
    "names": (Space(a=Real(0, 1)), Space(b=Real(0, 1))),
    "names given twice": ([("a", 1), ("a", 2)], [("a", 3), ("a", 2)]),
    "a key that looks like a place": ({"a": {}, "a.b": 1}, {"a": {"b": 1}}),
    "nesting": ([1, [2]], [[1], 2]),
    "keys": ({"a": 1}, {"b": 1}),
    "keys of any kind": ({1: "a"}, {2: "a"}),
    "shapes": (np.zeros((2, 3)), np.zeros((3, 2))),
    "dtypes": (np.zeros(2, np.int32), np.zeros(2, np.float32)),
    "arrays of objects": (np.array([1, "a"], object), np.array([1, "b"], object)),
    "random keys": (jr.key(0), jr.key(1)),
    "what a set in a function holds": (lambda t: t in {1, 2}, lambda t: t in {1, 3}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_something_else_is_another(name):
    one, other = OTHERS[name]
    assert of(one) == of(one)
    assert of(one) != of(other)


ALIKE = {
    "objects at other addresses": (Addressed(3), Addressed(3)),
    "functions at other addresses": (scaled(0.5), scaled(0.5)),
    "partials": (functools.partial(max, 1), functools.partial(max, 1)),
    "NumPy's whole numbers": (3, np.int64(3)),
    "the order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "the order of other keys": ({1: 1, 2: 2}, {2: 2, 1: 1}),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_does_the_same_is_the_same(name):
    one, other = ALIKE[name]
    assert of(one) == of(other)


def test_what_holds_itself_or_cannot_be_saved_has_an_identity():
    again: list = [1]
    again.append(again)
    assert of(Circle()) == of(Circle())
    assert of(again) != of([1, [1]])
    assert of(threading.Lock()) == of(threading.Lock())


numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
things = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


def canonical(thing):
    """Another way to tell things apart: JSON of their kinds and bits."""
    if isinstance(thing, Pair):
        return ["Pair", canonical(thing.left), canonical(thing.right)]
    if isinstance(thing, dict):
        return ["dict", sorted([key, canonical(value)] for key, value in thing.items())]
    if isinstance(thing, list | tuple):
        return [type(thing).__name__, *map(canonical, thing)]
    text = thing.hex() if isinstance(thing, float | bytes) else str(thing)
    return f"{type(thing).__name__} {text}"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(things, things)
def test_two_things_have_one_identity_if_they_are_equal_in_every_bit(one, other):
    told = [json.dumps(canonical(thing), sort_keys=True) for thing in (one, other)]
    assert (of(one) == of(other)) == (told[0] == told[1])


SCRIPT = """
import functools
import numpy as np
from tests.runs.test_identity import Addressed, Relation, Slotted, halving, scaled
from jaxbo import *
from jaxbo.runs._identity import identity, whole
method = FTS(Space(a=Real(0, 1), b=Categorical("x", None, True)), 3, own=Fitted(9), mixing=scaled(0.5))
things = [{"one", "two", 3}, frozenset(map(str, range(9))), Addressed({"a", "b"}), Slotted(Relation.ADD)]
functions = [halving, scaled({"p", "q"}), functools.partial(max, "z"), lambda t: t in {"u", "v", "w"}]
print(whole(identity(method=method, things=things, functions=functions)))
"""


@pytest.mark.slow
def test_it_is_one_in_every_process_whatever_the_seed_of_hashes():
    root = str(Path(__file__).parents[2])
    found = set()
    for seed in ("0", "12345"):
        there = environment() | {"PYTHONHASHSEED": seed}
        there["PYTHONPATH"] = os.pathsep.join([root, there["PYTHONPATH"]])
        command = [sys.executable, "-c", SCRIPT]
        ran = subprocess.run(command, env=there, capture_output=True, text=True, check=True)
        found.add(ran.stdout.strip())
    assert len(found) == 1


def refusal(mine, theirs):
    with pytest.raises(CheckpointError) as caught:
        check_same(Path("night.npz"), identity(**theirs), json.loads(json.dumps(identity(**mine))))
    return str(caught.value)


DIFFERENCES = {
    "surrogate.kernel differs": (TS(Cube(1)), TS(Cube(1), surrogate=Fixed(Matern52(0.2)))),
    "surrogate.size differs": (TS(Cube(1)), TS(Cube(1), surrogate=Fixed(size=8))),
    "surrogate differs": (TS(Cube(1)), TS(Cube(1), surrogate=Fitted(8))),
    "surrogate.noise, candidates differ": (TS(Cube(1)), TS(Cube(1), 1, Fixed(noise=0.2), 9)),
    "surrogate.expert.inference differs": (
        EGP(Cube(1), Ensemble((Matern52(0.2),), Fitted(9))),
        EGP(Cube(1), Ensemble((Matern52(0.2),), Fitted(9, inference=Exact()))),
    ),
    "policy differs": (EGP(Cube(1), Fitted(9)), EGP(Cube(1), Fitted(9), EI())),
    "domain.parameters.a.upper differs": (
        RandomSearch(Space(a=Real(0, 1))),
        RandomSearch(Space(a=Real(0, 2))),
    ),
    "domain.parameters.a.choices[1] differs": (
        RandomSearch(Space(a=Categorical("x", None))),
        RandomSearch(Space(a=Categorical("x", "None"))),
    ),
    "domain.points differs": (RandomSearch(Finite(np.eye(2))), RandomSearch(Finite(-np.eye(2)))),
    "agents, targets differ": (FTS(Cube(1), 2), FTS(Cube(1), 3)),
    "candidates differs": (TS(Cube(1), candidates=9), TS(Cube(1), candidates=8)),
    "own differs": (FTS(Cube(1), 2), FTS(Cube(1), 2, own=Fitted(9))),
    "mixing differs": (FTS(Cube(1), 2), FTS(Cube(1), 2, mixing=0.5)),
    "mixing.function differs": (
        FTS(Cube(1), 2, mixing=halving),
        FTS(Cube(1), 2, mixing=scaled(1.0)),
    ),
}


@pytest.mark.parametrize("text", DIFFERENCES)
def test_the_field_that_differs_is_named(text):
    mine, other = DIFFERENCES[text]
    message = refusal({"algorithm": mine}, {"algorithm": other})
    assert f"another algorithm: {text};" in message
    assert message.endswith("to continue it, or give another path to begin anew.")


def test_all_parts_that_differ_are_named_and_no_other():
    mine = {"algorithm": TS(Cube(1)), "key": jr.key(0), "initial": 3, "version": "1"}
    other = {"algorithm": RandomSearch(Cube(1)), "key": jr.key(1), "initial": 3, "version": "1"}
    assert "with another algorithm, and another key;" in refusal(mine, other)
    check_same(Path("night.npz"), identity(**mine), identity(**mine))


def test_of_many_fields_a_few_are_named():
    mine, other = ({"state": dict.fromkeys("abcdef", number)} for number in (1, 2))
    assert "another state: a, b, c, … differ;" in refusal(mine, other)


def test_a_part_of_an_older_or_damaged_file_is_another():
    mine = identity(algorithm=TS(Cube(1)), key=jr.key(0))
    for theirs in ({}, {"algorithm": 7, "key": None}, {"algorithm": [], "key": ""}):
        with pytest.raises(CheckpointError, match="another algorithm, and another key"):
            check_same(Path("night.npz"), mine, theirs)


@pytest.mark.parametrize(
    "of_capacity",
    [
        lambda capacity: TS(Cube(1), surrogate=Fixed(capacity=capacity)),
        lambda capacity: FTS(Cube(1), 2, own=Fitted(capacity)),
        lambda capacity: EGP(Cube(1), Ensemble.warped(1, capacity=capacity)),
    ],
)
def test_room_for_observations_is_no_part_of_a_run(of_capacity):
    assert of(of_capacity(9)) == of(of_capacity(70))
    assert whole(of(of_capacity(9))) == whole(of(of_capacity(70)))


def test_a_field_called_capacity_elsewhere_is():
    assert of(Space(capacity=Real(0, 1))) != of(Space(capacity=Real(0, 2)))
    assert of(OrderedDict(capacity=1)) != of(OrderedDict(capacity=2))


def test_numbers_in_another_precision_are_others():
    one = of(jnp.ones(3, jnp.float32))
    with jax.enable_x64(True):
        assert one != of(jnp.ones(3, jnp.float64))
