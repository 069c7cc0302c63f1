"""Arguments of constructors, given values of a wrong kind."""

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxbo
from tests.arguments.wrong import cases, works_or_says_why

pytestmark = pytest.mark.usefixtures("as_users_have_it")

CUBE = jaxbo.Cube(2)
SMALL = jaxbo.Fixed(size=8, capacity=8)
FITTED = jaxbo.Fitted(8, size=8, inference=jaxbo.Exact())
MECHANISM = jaxbo.Mechanism(1.0, 1.0, jaxbo.Poisson(0.5))
REAL = jaxbo.Real(0.0, 1.0)
LEVELS = {"lower": 0, "upper": 4, "log": False}


def of_space(kind):
    """What a parameter is made of is looked at by its space."""
    return lambda *choices, **arguments: jaxbo.Space(p=kind(*choices, **arguments))


def context(parameter):
    return jaxbo.Space(x=REAL, p=jaxbo.Context(parameter))


def space(mapping, where=None):
    return jaxbo.Space(mapping, where=where)


#: What is exported, and arguments that it takes.
CONSTRUCTORS = {
    "Cube": (jaxbo.Cube, {"dim": 2}),
    "Finite": (jaxbo.Finite, {"points": np.eye(2)}),
    "Regions": (jaxbo.Regions, {"splits": (2, 2)}),
    "Regions.of": (jaxbo.Regions.of, {"dim": 2, "count": 4}),
    "Real": (of_space(jaxbo.Real), {"lower": 0.0, "upper": 1.0, "log": False}),
    "Integer": (of_space(jaxbo.Integer), {**LEVELS, "step": 1}),
    "Categorical": (lambda choices: of_space(jaxbo.Categorical)(choices, "b"), {"choices": "c"}),
    "Ordinal": (lambda choices: of_space(jaxbo.Ordinal)(choices, "b"), {"choices": "c"}),
    "Outcome": (jaxbo.Outcome, {"name": "latency", "at_most": 1.0}),
    "Outcome above": (functools.partial(jaxbo.Outcome, "latency"), {"at_least": 1.0}),
    "Context": (context, {"parameter": REAL}),
    "Space": (space, {"mapping": {"x": REAL}, "where": None}),
    "RandomSearch": (jaxbo.RandomSearch, {"domain": CUBE, "agents": 2}),
    "TS": (jaxbo.TS, {"domain": CUBE, "agents": 2, "surrogate": SMALL, "candidates": 8}),
    "FTS": (
        jaxbo.FTS,
        {
            "domain": CUBE, "agents": 2, "features": SMALL, "own": None, "mixing": 0.5, "peers": None,
            "once": False, "targets": 2, "candidates": 8,
        },
    ),
    "DPFTSDE": (
        jaxbo.DPFTSDE,
        {
            "domain": CUBE, "agents": 2, "mechanism": MECHANISM, "regions": jaxbo.Regions((1, 1)),
            "weighting": jaxbo.Weighting(), "features": SMALL, "own": None, "mixing": 0.5,
            "candidates": 8,
        },
    ),
    "RGPE": (
        jaxbo.RGPE,
        {
            "domain": CUBE, "agents": 2, "own": FITTED, "features": SMALL, "peers": None, "once": False,
            "targets": 2, "candidates": 8, "draws": 10,
        },
    ),
    "TAF": (
        jaxbo.TAF,
        {
            "domain": CUBE, "agents": 2, "own": FITTED, "features": SMALL, "peers": None, "once": False,
            "targets": 2, "candidates": 8, "bandwidth": 0.5,
        },
    ),
    "LearnedPrior": (
        jaxbo.LearnedPrior,
        {
            "domain": CUBE, "agents": 2, "capacity": 8, "features": SMALL, "policy": jaxbo.EI(),
            "rank": 2, "groups": 2, "own_units": False, "degrees": 5.0, "shrink": 1.0, "trust": 0.5,
            "mixing": None, "candidates": 8, "prior": None,
        },
    ),
    "DPLearnedPrior": (
        jaxbo.DPLearnedPrior,
        {
            "domain": CUBE, "agents": 2, "capacity": 8, "mechanism": MECHANISM, "releases": 3.0,
            "location": 0.0, "scale": 1.0, "features": SMALL, "policy": jaxbo.EI(), "shrink": 1.0,
            "trust": 0.5, "candidates": 8, "first": 3,
        },
    ),
    "CEPE": (
        jaxbo.CEPE,
        {
            "domain": CUBE, "agents": 2, "numbers": np.array([1, 1, 2]), "alpha": 0.5, "weights": None,
            "kernel": jaxbo.SquaredExponential(0.3), "noise": 0.1, "sketch": None,
            "initial_capacity": 0, "start": [0.5, 0.5], "lessons": 2, "stays": None,
        },
    ),
    "Stays": (jaxbo.Stays, {"every": 4, "distance": 0.05, "share": 0.9}),
    "DECHBO": (
        jaxbo.DECHBO,
        {
            "domain": CUBE, "surrogate": jaxbo.Decomposed([(0, 1)], 8), "policy": jaxbo.UpperBound(),
            "workers": 1, "candidates": 8, "iterations": 3, "steps": 3, "finer": (),
        },
    ),
    "BO": (jaxbo.BO, {"domain": CUBE, "evaluations": 10, "workers": 1, "outcomes": ()}),
    "EGP": (
        jaxbo.EGP,
        {
            "domain": CUBE, "surrogate": FITTED, "policy": jaxbo.EI(), "workers": 2,
            "candidates": 8, "focus": 4, "quadratic_every": 3,
        },
    ),
    "EXP3BO": (
        jaxbo.EXP3BO,
        {
            "domain": CUBE, "surrogate": jaxbo.Ensemble([jaxbo.SquaredExponential(0.3)], FITTED),
            "gamma": 0.1, "candidates": 8,
        },
    ),
    "Fixed": (
        jaxbo.Fixed,
        {
            "kernel": jaxbo.SquaredExponential(0.3), "size": 8, "noise": 0.1, "standardize": True,
            "capacity": 8,
        },
    ),
    "Fitted": (
        jaxbo.Fitted,
        {
            "capacity": 8, "kernel": jaxbo.SquaredExponential(0.3), "size": 8, "noise": 0.1,
            "refit_every": 5, "warp": False, "inference": jaxbo.Exact(),
        },
    ),
    "Ensemble": (
        jaxbo.Ensemble,
        {"kernels": [jaxbo.SquaredExponential(0.3)], "expert": FITTED, "floor": 1e-4},
    ),
    "Marginal": (jaxbo.Marginal, {"expert": FITTED, "samples": 8, "warmup": 20}),
    "Widened": (jaxbo.Widened, {"model": FITTED, "beta": 2.0}),
    "Pooled": (jaxbo.Pooled, {"settings": 8}),
    "Decomposed": (
        jaxbo.Decomposed,
        {
            "structure": [(0, 1)], "capacity": 8, "form": None, "noise": 1e-3, "refit_every": 10,
            "warp": False, "grid": 8, "per_factor": False,
        },
    ),
    "UCB": (jaxbo.UCB, {"beta": 2.0}),
    "Drawn": (jaxbo.Drawn, {"policy": jaxbo.EI()}),
    "Ranked": (jaxbo.Ranked, {"effect": 0.3, "start": None}),
    "Matern12": (jaxbo.Matern12, {"length_scale": 0.3, "variance": 1.0}),
    "Matern32": (jaxbo.Matern32, {"length_scale": 0.3, "variance": 1.0}),
    "Matern52": (jaxbo.Matern52, {"length_scale": 0.3, "variance": 1.0}),
    "SquaredExponential": (jaxbo.SquaredExponential, {"length_scale": 0.3, "variance": 1.0}),
    "Pivoted": (jaxbo.Pivoted, {"count": 3, "exact": False}),
    "Sketch": (jaxbo.Sketch, {"q0": 2.0, "exact": False}),
    "FixedSize": (jaxbo.FixedSize, {"count": 2, "agents": 4}),
    "Poisson": (jaxbo.Poisson, {"probability": 0.5}),
    "Mechanism": (jaxbo.Mechanism, {"z": 1.0, "S": 1.0, "sampling": jaxbo.Poisson(0.5)}),
    "Weighting": (jaxbo.Weighting, {"emphasis": 15.0, "hold": 5.0, "decay": 5.0}),
    "FactorSample": (jaxbo.FactorSample, {"size": 8}),
    "MaxValueEntropy": (jaxbo.MaxValueEntropy, {"samples": 3, "paths": False, "size": 8}),
    "UpperBound": (jaxbo.UpperBound, {"beta": 2.0, "joint": True}),
    "Sampled": (
        jaxbo.Sampled,
        {"arity": 2, "factors": None, "count": 4, "steps": 10, "penalty": None},
    ),
    "Renewing": (jaxbo.Renewing, {"make": functools.partial(ThreadPoolExecutor, 1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_the_arguments_that_are_replaced_are_right(name):
    make, good = CONSTRUCTORS[name]
    make(**good)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(cases(CONSTRUCTORS)))
def test_a_wrong_argument_works_or_is_named(case):
    works_or_says_why(CONSTRUCTORS, case)


@pytest.mark.full
@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(cases(CONSTRUCTORS)))
def test_many_wrong_arguments_work_or_are_named(case):
    works_or_says_why(CONSTRUCTORS, case)
