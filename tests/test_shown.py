"""What settings and results print: numbers, on few lines."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.algos.cepe import CEPEInfo
from jaxbo.algos.fts import FTSInfo
from jaxbo.kernels.factors.maxsum import Solution


def test_a_solution_prints_its_numbers():
    found = Solution(jnp.asarray([2, 0, 1]), jnp.asarray(3.25), jnp.asarray(3.5), "messages")
    assert repr(found) == "Solution(x=[2, 0, 1], value=3.25, bound=3.5, route='messages')"


def test_a_trace_prints_the_range_of_its_values_and_what_failed():
    values = np.arange(20.0).reshape(10, 2) - 3
    values[4, 1] = np.nan
    queries = jnp.zeros((10, 2, 3)).at[0].set(1.0)
    info = jax.vmap(jax.vmap(FTSInfo))(jnp.arange(20).reshape(10, 2))
    text = repr(jaxbo.Trace(queries, values, info, initial=2))
    assert "values=float64[10,2] from -3 to 16, 1 not finite" in text
    assert "[10,2,3] from 0 to 1" in text
    assert "source=int32[10,2] from 0 to 19" in text
    assert "initial=2" in text
    assert len(text.splitlines()) <= 6
    assert "outcomes" not in text  # there are none


def test_what_a_round_tells_prints_its_numbers():
    info = CEPEInfo(jnp.asarray(True), jnp.asarray(3), jnp.asarray(12))
    assert repr(info) == "CEPEInfo(exploring=True, scalars=3, bytes=12)"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (jaxbo.Matern52(0.2), "Matern52(length_scale=0.2, variance=1.)"),
        (jaxbo.UCB(2.0), "UCB(beta=2.)"),
        (jaxbo.Poisson(0.5), "Poisson(probability=0.5)"),
        (jaxbo.Outcome("latency", at_most=1.5), "Outcome(name='latency', at_most=1.5)"),
        (
            jaxbo.Mechanism(1.0, 11.0, jaxbo.Poisson(0.25)),
            "Mechanism(z=1., S=11., sampling=Poisson(probability=0.25))",
        ),
        (
            jaxbo.Fixed(jaxbo.SquaredExponential([0.5, 2.0])),
            "Fixed(kernel=SquaredExponential(length_scale=[0.5, 2. ], variance=1.), noise=0.01)",
        ),
    ],
)
def test_settings_print_their_numbers(made, text):
    assert repr(made) == text


def test_a_method_prints_all_of_them_in_few_lines():
    text = repr(jaxbo.FTS(jaxbo.Cube(2), 3, features=jaxbo.Fixed(jaxbo.Matern52(0.3))))
    assert "mixing=Power(exponent=0.5, shift=1.)" in text
    assert "Matern52(length_scale=0.3" in text
    assert len(text.splitlines()) <= 6


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_what_is_traced_prints_its_type():
    seen = []

    @jax.jit
    def traced(x, key):
        seen.append(repr(jaxbo.Trace(x, x[..., 0], {"key": key})))
        return x

    traced(jnp.zeros((3, 2, 1)), jr.key(0))
    assert "[3,2,1]" in seen[0]
    assert repr(jaxbo.Trace(jnp.zeros((3, 2, 1)), jnp.zeros((3, 2)), jr.split(jr.key(0))))
