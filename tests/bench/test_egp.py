"""What EGP-TS's experiments run: every method builds, and the regret is what was asked for."""

import warnings

import jax
import numpy as np
import pytest

from bench import egp_robot, egp_synthetic
from jaxbo.functions import dropwave


@pytest.mark.parametrize("name", egp_synthetic.METHODS)
@pytest.mark.parametrize("dim", [2, 5])
def test_every_method_has_room_for_its_evaluations(name, dim):
    algorithm = egp_synthetic.METHODS[name](dim, 100)
    assert algorithm.domain.dim == dim
    assert algorithm.capacity == 110


def test_regret_is_against_the_optimum_and_never_grows():
    keys = jax.random.split(jax.random.key(0), 2)
    method = egp_synthetic.METHODS["GP-TS, SE"]
    regret = np.asarray(egp_synthetic.regret(method, dropwave(), keys, 3))
    assert regret.shape == (2, 3)
    assert (np.diff(regret, axis=1) <= 0).all()
    assert ((regret >= 0) & (regret <= 1)).all()


def test_claims_compare_the_ends_of_runs():
    names = [f"{f}, {m}" for f in egp_synthetic.FUNCTIONS for m in egp_synthetic.METHODS]
    good, bad = np.full((4, 3), 0.001), np.full((4, 3), 1e3) + np.arange(4)[:, None]
    alike = egp_synthetic.checks(dict.fromkeys(names, good))
    assert alike
    assert all(check.holds for check in alike.values())
    worse = {name: bad if "EGP" in name or "mixture" in name else good for name in names}
    assert not any(check.holds for check in egp_synthetic.checks(worse).values())


def test_a_robot_gets_nearer():
    with warnings.catch_warnings():
        # As errors, the package's own deprecations crash the interpreter.
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("Box2D")
    distances = egp_robot.regret(egp_synthetic.METHODS["GP-TS, SE"], 3, 0, 3, 0)
    assert distances.shape == (3,)
    assert (np.diff(distances) <= 0).all()
    assert (distances > 0).all()
