import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.algos.base.outcomes import Outcome
from jaxbo.algos.bo import BO, LARGEST_DESIGN, first_design
from jaxbo.domains.base import Cube, Finite
from jaxbo.domains.parameters import Categorical, Context, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing.policy import EI, Thompson
from jaxbo.runs.compiled import run


def test_there_is_room_for_all_evaluations_and_for_workers_who_are_busy():
    assert BO(Cube(2), 30).capacity == 30
    assert BO(Cube(2), 30, workers=4).surrogate.capacity == 33
    assert BO(Cube(2), 30, workers=4).targets == 4
    assert BO(Cube(2), 1, workers=4).capacity == 1


def test_a_context_has_thompson_sampling_and_all_else_expected_improvement():
    load = Context(Real(0.0, 1.0))
    assert isinstance(BO(Space(load=load, x=Real(0.0, 1.0))).policy, Thompson)
    assert isinstance(BO(Space(x=Real(0.0, 1.0)), outcomes=[Outcome("t", at_most=1.0)]).policy, EI)


def test_the_better_half_is_seen_alone_where_it_is_large_and_all_values_are_alike():
    assert [BO(Cube(dim)).focus for dim in (1, 3, 10)] == [35, 35, 105]
    load = Context(Real(0.0, 1.0))
    assert BO(Space(load=load, x=Real(0.0, 1.0))).focus is None
    assert BO(Cube(2), outcomes=[Outcome("t", at_most=1.0)]).focus is None


def test_a_quadratic_has_queries_where_all_parameters_are_real():
    reals = Space(x=Real(0.0, 1.0), y=Real(1.0, 2.0, log=True))
    assert [BO(domain).quadratic_every for domain in (Cube(2), reals)] == [3, 3]
    others = (
        Space(load=Context(Real(0.0, 1.0)), x=Real(0.0, 1.0)),
        Space(x=Real(0.0, 1.0), kind=Categorical("a", "b")),
        Space(x=Real(0.0, 1.0), size=Integer(1, 9)),
        Finite(jnp.eye(3)),
    )
    assert [BO(domain).quadratic_every for domain in others] == [None] * 4
    assert BO(Cube(2), outcomes=[Outcome("t", at_most=1.0)]).quadratic_every is None


def test_length_scales_are_expected_to_be_shorter_where_parameters_have_steps():
    def median(domain):
        return float(BO(domain).surrogate.expert.priors.length_scale.median)

    reals = Space(x=Real(0.0, 1.0), y=Real(1.0, 2.0, log=True))
    assert median(reals) == median(Cube(2)) == pytest.approx(math.exp(math.sqrt(2)) * math.sqrt(2))
    steps = Space(x=Real(0.0, 1.0), kind=Categorical("a", "b", "c"))
    assert median(steps) == pytest.approx(0.45 * math.sqrt(4))


def test_the_first_design_counts_parameters_and_not_coordinates():
    assert first_design(Space(kind=Categorical(*"abcdefgh"), x=Real(0.0, 1.0))) == 6
    assert first_design(Cube(30)) == LARGEST_DESIGN


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda: BO(Cube(2), 0), "evaluations"),
        (lambda: BO(Cube(2), workers=0), "workers"),
    ],
)
def test_errors_name_the_argument(wrong, word):
    with pytest.raises(ValueError, match=word):
        wrong()


@pytest.mark.full
def test_the_top_of_a_smooth_peak_is_found_to_many_digits():
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    H = jnp.asarray(turned * [1.0, 30.0, 1000.0] @ turned.T, float)

    def value(key, worker, x):
        away = x - jnp.array([0.3, 0.6, 0.45])
        return -away @ H @ away

    @jax.jit
    def best(keys):
        method = BO(Cube(3), 40)
        one = lambda key: run(method, value, 30, key, initial=8)[1].values.max()  # noqa: E731
        return jax.lax.map(one, keys)

    assert float(np.max(-best(jr.split(jr.key(0), 4)))) < 1e-4


@pytest.mark.full
def test_with_a_choice_and_an_integer_it_finds_the_optimum_soon():
    space = Space(
        rate=Real(1e-5, 1e-1, log=True), depth=Integer(1, 8), kind=Categorical("a", "b", "c")
    )

    def value(key, worker, x):
        p = space.unpack(x)
        away = 0.1 * jnp.abs(p["depth"].astype(float) - 5)
        return -((jnp.log10(p["rate"]) + 3) ** 2) - away - (p["kind"] != 1).astype(float)

    method = BO(space, 24)
    values = jax.jit(jax.vmap(lambda key: run(method, value, 16, key, initial=8)[1].values))(
        jr.split(jr.key(0), 16)
    )
    assert -np.max(values, axis=(1, 2)).mean() < 0.05
