"""Arguments of pictures, given values of a wrong kind, and runs that have little to show."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo import plotting
from jaxbo.kernels.factors.graph import FactorGraph
from tests.arguments.wrong import all_work_or_say_why

pytestmark = pytest.mark.usefixtures("as_users_have_it")

CUBE = jaxbo.Cube(2)
GRID, SURFACE = np.linspace(0, 1, 5), np.arange(25.0).reshape(5, 5)
POINTS, VALUES = np.eye(2), np.arange(2.0)
MEAN = GRID**2
TRACE = jaxbo.Trace(jnp.asarray(jr.uniform(jr.key(0), (2, 2, 2))), np.zeros((2, 2)), ())
MECHANISMS = {"z = 1": jaxbo.Mechanism(1.0, 1.0, jaxbo.Poisson(0.1))}
PRESENT = np.ones((2, 2), bool)
TIMED = jaxbo.Trace(TRACE.queries, TRACE.values, (), times=np.ones((2, 2, 2)))
#: A model needs three values: what stands before it is looked at without one.
RUN = {"run": TRACE, "ax": None, "domain": CUBE, "agent": 0}


def before_a_model(picture):
    """The picture, which has to find all that is wrong before it fits a model."""

    def drawn(**arguments):
        try:
            picture(**arguments)
        except ValueError as error:
            if "a model needs at least three values" not in str(error):
                raise

    return drawn


TABLE = {
    "regret": (
        plotting.regret,
        {
            "curves": {"TS": SURFACE}, "ax": None, "xlabel": "round", "ylabel": "regret",
            "band": "error", "log": False,
        },
    ),
    "regret of one": (lambda TS: plotting.regret({"TS": TS}), {"TS": SURFACE}),
    "posterior_1d": (
        plotting.posterior_1d,
        {
            "xs": GRID, "mean": MEAN, "std": MEAN, "observations": (GRID, MEAN), "truth": MEAN,
            "samples": MEAN[None], "ax": None,
        },
    ),
    "posterior_2d": (
        plotting.posterior_2d,
        {
            "xs": GRID, "ys": GRID, "mean": SURFACE, "observations": (POINTS, VALUES), "ax": None,
            "label": "mean", "direction": "maximize",
        },
    ),
    "progress": (
        plotting.progress, {"values": SURFACE, "ax": None, "xlabel": None, "ylabel": "value"}
    ),
    "save": (
        plotting.save, {"figure": plotting.progress(SURFACE), "path": "picture.svg"}
    ),
    "slice_1d": (before_a_model(plotting.slice_1d), {**RUN, "parameter": 0, "at": [0.5, 0.5]}),
    "contour": (
        before_a_model(plotting.contour), {**RUN, "first": 0, "second": 1, "at": [0.5, 0.5]}
    ),
    "importance": (before_a_model(plotting.importance), {**RUN, "count": 16}),
    "parallel": (plotting.parallel, RUN),
    "agent_map": (
        plotting.agent_map,
        {
            "run": TRACE, "ax": None, "domain": CUBE, "first": 0, "second": 1,
            "weights": np.ones((2, 2)),
        },
    ),
    "factor_graph": (
        plotting.factor_graph,
        {
            "graph": FactorGraph([2, 2], [(0, 1)]), "ax": None, "messages": (np.zeros((1, 2, 2)),),
            "names": ["a", "b"],
        },
    ),
    "privacy_curve": (
        plotting.privacy_curve,
        {
            "mechanisms": MECHANISMS, "rounds": 2, "delta": 1e-3, "ax": None, "budget": 1.0,
            "accountant": jaxbo.accounting.moments,
        },
    ),
    "timeline": (plotting.timeline, {"present": PRESENT, "ax": None, "run": TRACE}),
    "utilization": (plotting.utilization, {"run": TIMED, "ax": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_argument_of_a_picture_works_or_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a picture may be written
    make, good = TABLE[name]
    make(**good)
    all_work_or_say_why(TABLE, name)


NOTHING = jaxbo.Trace(jnp.zeros((0, 2, 2)), np.zeros((0, 2)), ())
FAILED = jaxbo.Trace(jnp.full((4, 2, 2), 0.5), np.full((4, 2), np.nan), ())
MODELED = {
    "slice_1d": lambda run: plotting.slice_1d(run, 0, domain=CUBE),
    "contour": lambda run: plotting.contour(run, 0, 1, domain=CUBE),
    "importance": lambda run: plotting.importance(run, domain=CUBE),
}


def desk():
    method = jaxbo.EGP(CUBE, jaxbo.Fixed(size=4, capacity=8), jaxbo.Thompson(), candidates=4)
    return jaxbo.Desk(method, jr.key(0), initial=3)


@pytest.mark.parametrize("run", [NOTHING, FAILED, desk()], ids=["nothing", "failed", "desk"])
@pytest.mark.parametrize("name", MODELED)
def test_a_model_of_a_run_without_values_is_refused(name, run):
    with pytest.raises(ValueError, match="a model needs at least three values, got 0"):
        MODELED[name](run)


@pytest.mark.parametrize("run", [NOTHING, desk()], ids=["nothing", "desk"])
def test_pictures_of_what_was_evaluated_need_an_evaluation(run):
    for picture in (plotting.progress, lambda run: plotting.parallel(run, domain=CUBE)):
        with pytest.raises(ValueError, match=r"^values must be a matrix|^run has no eval"):
            picture(run)


def test_evaluations_that_all_failed_are_drawn_as_failures():
    labels = [line.get_label() for line in plotting.progress(FAILED).lines]
    assert "failed" in labels
    lines = plotting.parallel(FAILED, domain=CUBE).lines
    assert [line.get_label() for line in lines[:4]] == ["failed", "_failed", "_failed", "_failed"]
