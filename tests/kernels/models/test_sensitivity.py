"""Sobol indices against closed forms."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Context, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.models.sensitivity import sobol

COUNT = 20_000
ERROR = 0.03  # four standard errors


@functools.partial(jax.jit, static_argnums=(1, 2))
def indices(key, function, domain):
    return sobol(key, function, domain, COUNT)


def ishigami(x):
    """With a = 7, b = 0.1, on [-π, π]³ (Saltelli et al., 2008)."""
    a, b, c = jnp.pi * (2 * x - 1)
    return jnp.sin(a) + 7 * jnp.sin(b) ** 2 + 0.1 * c**4 * jnp.sin(a)


def test_ishigamis_function_has_its_indices(key):
    found = indices(key, ishigami, Cube(3))
    np.testing.assert_allclose(found.first, [0.3139, 0.4424, 0.0], atol=ERROR)
    np.testing.assert_allclose(found.total, [0.5576, 0.4424, 0.2437], atol=ERROR)


def test_a_sum_has_shares_of_its_terms_variances_alone(key):
    weights = np.array([3.0, 2.0, 1.0, 0.0])
    found = indices(key, lambda x: jnp.sum(jnp.asarray(weights, x.dtype) * x) + 50.0, Cube(4))
    expected = weights**2 / np.sum(weights**2)
    np.testing.assert_allclose(found.first, expected, atol=ERROR)
    np.testing.assert_allclose(found.total, expected, atol=ERROR)


def test_a_parameter_is_one_variable_however_many_coordinates_it_has(key):
    space = Space(
        rate=Real(0.0, 1.0), loss=Categorical("a", "b", "c"), depth=Integer(1, 4), other=Real(0, 1)
    )

    def function(x):
        p = space.unpack(x)
        return p["depth"].astype(x.dtype) + 2.0 * (p["loss"] == 1).astype(x.dtype) + p["rate"]

    variances = np.array([1 / 12, 4 * (1 / 3) * (2 / 3), 15 / 12, 0])
    found = indices(key, function, space)
    assert found.first.shape == (4,)
    np.testing.assert_allclose(found.first, variances / variances.sum(), atol=ERROR)
    np.testing.assert_allclose(found.total, variances / variances.sum(), atol=ERROR)


BRANCHES = Space(m=Categorical("a", "b"), c=Real(0.0, 1.0).when(m="b"))


def test_a_parameter_of_one_branch_acts_together_with_its_choice(key):
    """f = [m = b] (c + 1): E f | m is 0 or 3/2, E f | c is (c + 1) / 2, and E f = 3/4."""
    found = indices(key, lambda x: x[1] * (x[2] + 1), BRANCHES)
    variance = 7 / 6 - 9 / 16
    np.testing.assert_allclose(found.first, np.array([9 / 16, 1 / 48]) / variance, atol=ERROR)
    np.testing.assert_allclose(found.total, 1 - np.array([1 / 48, 9 / 16]) / variance, atol=ERROR)


@pytest.mark.slow
def test_only_points_of_the_space_are_evaluated(key):
    asked = []

    def function(x):
        jax.debug.callback(lambda x: asked.append(np.asarray(x)), x)
        return x[2]

    jax.block_until_ready(sobol(key, function, BRANCHES, 32))
    jax.effects_barrier()
    assert len(asked) == 32 * 4
    assert bool(jnp.all(jax.vmap(BRANCHES.contains)(jnp.asarray(np.stack(asked)))))


@pytest.mark.slow
def test_a_context_is_a_variable_and_where_hides_nothing(key):
    space = Space(
        load=Context(Real(0.0, 1.0)), x=Real(0.0, 1.0), where=lambda p: p["x"] <= p["load"]
    )
    found = jax.jit(lambda key: sobol(key, lambda x: 2 * x[0] + x[1], space, COUNT))(key)
    np.testing.assert_allclose(found.first, [0.8, 0.2], atol=ERROR)
    np.testing.assert_allclose(found.total, [0.8, 0.2], atol=ERROR)


def test_a_constant_has_none(key):
    found = indices(key, lambda x: 0 * x[0] + 2, Cube(2))
    assert np.asarray(found).tolist() == [[0, 0], [0, 0]]


@pytest.mark.slow
def test_variables_of_a_finite_set_are_refused():
    with pytest.raises(ValueError, match="need a Cube or a Space"):
        sobol(jr.key(0), lambda x: x[0], Finite(np.array([[0.0], [1.0]])))
