"""Warnings of private releases that are noise alone. Of those that are simulated: `test_dp_fts_de`."""

import warnings

import jax
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo import DPFTSDE, DPLearnedPrior, Fixed, Mechanism, Poisson, drive
from jaxbo.federation.coordinator import Coordinator
from jaxbo.runs._simulation import warn_of_noise_alone
from tests.walk import LEDGER, SumWalk

SQUARE = jaxbo.Cube(2)
NOISY = Mechanism(1.0, 5.0, Poisson(1.0))


class Comparing(SumWalk):
    """Of a method whose agents compare two values."""

    least_initial = 2


METHOD = Comparing(SQUARE, mechanism=NOISY)


def said(call):
    """The texts of all warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("algorithm", "least"),
    [
        (DPLearnedPrior(SQUARE, 3, mechanism=NOISY), 2),
        (DPLearnedPrior(SQUARE, 3, mechanism=NOISY, location=0.0, scale=1.0), 1),
        (DPFTSDE(SQUARE, 3, mechanism=NOISY), 2),
        (DPFTSDE(SQUARE, 3, mechanism=NOISY, features=Fixed(standardize=False)), 1),
        (SumWalk(SQUARE, mechanism=NOISY), 0),
    ],
    ids=["own units", "a guess", "DP-FTS-DE", "values as they are", "no need of values"],
)
def test_a_method_says_how_many_values_a_release_needs(algorithm, least):
    assert said(lambda: warn_of_noise_alone(algorithm, NOISY, least, least)) == []
    assert said(lambda: warn_of_noise_alone(algorithm, None, 0, 0)) == []
    if least:
        (text,) = said(lambda: warn_of_noise_alone(algorithm, NOISY, 0, 0))
        assert f"give initial={least} or more" in text


def test_with_too_few_values_a_message_is_the_same_whatever_they_are(key):
    """The reason why `DPFTSDE` needs two: a single value is its own mean."""
    algorithm, x = DPFTSDE(SQUARE, 3, mechanism=NOISY), np.full((2, 3, 2), 0.3, np.float32)
    x[1] = 0.8

    @jax.jit
    def weights(values):
        state = algorithm.warm_start(algorithm.init(key), x[: len(values)], values)
        return algorithm.messages(key, state).weights

    def sent(*values):
        """The messages, where all agents have observed these."""
        return np.asarray(weights(np.tile(np.float32(values), (3, 1)).T))

    np.testing.assert_array_equal(sent(0), sent(7))
    assert np.abs(sent(0, 1) - sent(0, -1)).max() > 1e-3


def test_a_driven_run_says_it_once_unless_agents_know_enough(tmp_path):
    def go(name, rounds=1, **options):
        given = {"progress": False, "checkpoint": tmp_path / name, "ledger": LEDGER} | options
        return drive(METHOD, lambda agent, x: float(x[0]), rounds, jr.key(1), **given)

    rows = np.random.default_rng(0).random((1, 3, 2)), np.zeros((1, 3))
    with pytest.warns(RuntimeWarning, match="have 1 observations before .* 2: give initial=2 or"):
        go("few", initial=1)
    with pytest.warns(RuntimeWarning, match="have 1 observations before .* 2: give initial=1 or"):
        go("known alone", known=rows)
    go("few", rounds=2, initial=1)  # goes on: its first release was charged
    go("enough", initial=2)
    go("known", initial=1, known=rows)
    go("no round", rounds=0)
    # A state that has had its first round: the release is no first one.
    state, trace = go("begun", initial=2)
    go("goes on", state=state, ledger=trace.ledger)


def test_a_server_says_it(tmp_path):
    def begin(initial):
        server = Coordinator(
            METHOD, 2, jr.key(0), tmp_path / f"{initial}", initial=initial, ledger=LEDGER
        )
        server.stop()

    assert said(lambda: begin(2)) == []
    (text,) = said(lambda: begin(1))
    assert "noise alone" in text
