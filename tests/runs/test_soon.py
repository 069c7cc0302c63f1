"""Loops with Python objectives compile their steps soon, and a run goes on as it was."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.federation import _sides
from jaxbo.runs import _soon
from tests.runs.driven import bowl, quiet

CUBE, options = jaxbo.Cube(2), _soon.options
METHOD = jaxbo.EGP(CUBE, jaxbo.Fitted(8, size=16, inference=jaxbo.Exact()), candidates=16)


def level(method):
    return dict(_soon.options(method))["xla_backend_optimization_level"]


def test_small_models_are_compiled_soonest_and_large_ones_run_faster():
    assert level(jaxbo.BO(CUBE, 50)) == 0
    assert level(jaxbo.BO(CUBE, 200)) == 1
    assert level(jaxbo.TS(CUBE, 1)) == 0
    assert level(jaxbo.TS(CUBE, 1000)) == 1
    # Agents have a model each, and workers have one together.
    assert level(jaxbo.LearnedPrior(CUBE, 20, 40)) == 1
    assert level(jaxbo.EGP(CUBE, jaxbo.Fitted(60), jaxbo.Thompson(), workers=10)) == 0


def test_parties_of_a_federation_compile_the_model_of_one_agent(monkeypatch, key):
    method, seen = jaxbo.LearnedPrior(CUBE, 20, 40), []
    monkeypatch.setattr(
        _soon, "options", lambda *known, **of: seen.append(of) or options(*known, **of)
    )
    _sides.initial(method, key, jnp.asarray(0))
    assert seen == [{"of_one": True}]
    assert dict(options(method, of_one=True))["xla_backend_optimization_level"] == 0


def test_on_another_backend_all_is_as_by_default(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _soon.options(METHOD) == _soon.DEFAULT


def test_a_compiler_takes_the_options():
    double = _soon.compiled(lambda x: 2 * x, _soon.options(METHOD))
    assert double(jnp.asarray(2.0)) == 4
    # For the same options it is the same program.
    assert _soon.compiled(abs, _soon.options(METHOD)) is _soon.compiled(abs, _soon.options(METHOD))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_only_a_python_objective_is_in_no_need_of_fast_programs(compiled, monkeypatch, key):
    seen = []

    def options(algorithm):
        seen.append(algorithm)
        return _soon.DEFAULT

    monkeypatch.setattr(_soon, "options", options)
    objective = (lambda key, agent, x: -jnp.sum(x**2)) if compiled else bowl
    _, trace = quiet(METHOD, objective, 1, key, initial=2)
    assert bool(seen) is not compiled
    assert isinstance(trace.values, np.ndarray) is not compiled


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_bits_of_the_whole(path):
    _, whole = quiet(METHOD, bowl, 5, jr.key(0), initial=2)
    quiet(METHOD, bowl, 2, jr.key(0), initial=2, checkpoint=path)
    state, trace = quiet(METHOD, bowl, 5, jr.key(0), initial=2, checkpoint=path)
    np.testing.assert_array_equal(trace.queries, whole.queries)
    again = jaxbo.replay(METHOD, trace, jr.key(0))
    for one, other in zip(
        jax.tree.leaves(state.belief), jax.tree.leaves(again.belief), strict=True
    ):
        np.testing.assert_array_equal(one, other)
