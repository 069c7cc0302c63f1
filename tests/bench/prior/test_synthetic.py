"""Families of functions, and claims about a prior that agents learn together."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.prior import families, setting, synthetic

weights = jax.jit(families.weights, static_argnums=2)


@pytest.mark.parametrize(
    ("family", "alike"), [("alike", 0.99), ("half", 0.5), ("opposed", -0.94), ("unrelated", 0.0)]
)
def test_neighbors_have_as_much_in_common_as_their_family_says(family, alike):
    family = jnp.asarray(families.FAMILIES[family], float)
    w = np.asarray(weights(jr.key(0), family, synthetic.AGENTS))
    found = [np.corrcoef(w[i], w[i + 1])[0, 1] for i in range(synthetic.AGENTS - 1)]
    assert np.mean(found) == pytest.approx(alike, abs=0.05)


def test_claims_are_about_the_best_rival():
    ahead = {
        (family, method): np.full((30, 20), 1.0) + 0.01 * np.arange(30)[:, None]
        for family in families.FAMILIES
        for method in synthetic.METHODS
    }
    for family in families.FAMILIES:
        ahead[family, setting.CLAIMED] = 0.3 * ahead[family, "EI"]
    assert all(check.holds for check in synthetic.checks(ahead).values())
    for family in families.FAMILIES:
        ahead[family, "EI"] = 0.1 * ahead[family, "EI"]
    assert not any(check.holds for check in synthetic.checks(ahead).values())


def test_regret_falls_and_is_in_deviations():
    # With what the program is made of in it.
    program = jax.jit(lambda keys, family: synthetic.program("TS")(keys, family))
    regret = program(jr.split(jr.key(1), 2), jnp.asarray([0.5, 0.5, 1.0]))
    assert regret.shape == (2, setting.INITIAL + setting.ROUNDS)
    assert (np.diff(regret, axis=1) <= 1e-6).all()
    assert (regret[:, 0] < 5).all()
    assert (regret[:, -1] < regret[:, 0]).all()
