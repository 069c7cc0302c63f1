"""Warnings of private releases that are noise alone. Of those that are simulated: `test_dp_fts_de`."""

import warnings

import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo import DPFTSDE, DPLearnedPrior, Ledger, Mechanism, Poisson, drive
from jaxbo.federation.coordinator import releases_of
from tests.walk import SumWalk

SQUARE = jaxbo.Cube(2)
NOISY = Mechanism(1.0, 5.0, Poisson(1.0))
LEDGER = Ledger(1e-3, accountant=jaxbo.accounting.moments)


class Comparing(SumWalk):
    """Of a method whose agents compare two values."""

    least_initial = 2


def told(algorithm, initial, releases=(NOISY,)):
    """What a server is told before the first round."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        releases_of(algorithm, len(releases), jr.key(0), initial, LEDGER)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("algorithm", "least"),
    [
        (DPLearnedPrior(SQUARE, 3, mechanism=NOISY), 2),
        (DPLearnedPrior(SQUARE, 3, mechanism=NOISY, location=0.0, scale=1.0), 1),
        (DPFTSDE(SQUARE, 3, mechanism=NOISY), 1),
        (SumWalk(SQUARE, mechanism=NOISY), 0),
    ],
    ids=["own units", "a guess", "DP-FTS-DE", "no need of values"],
)
def test_a_server_hears_that_a_first_release_would_be_noise_alone(algorithm, least):
    assert told(algorithm, least) == []
    if least:
        (text,) = told(algorithm, least - 1)
        assert f"initial={least} or more" in text


def test_a_driven_run_hears_it_unless_agents_know_enough(tmp_path):
    def go(name, rounds=1, **options):
        given = {"progress": False, "checkpoint": tmp_path / name, "ledger": LEDGER} | options
        algorithm = Comparing(SQUARE, mechanism=NOISY)
        return drive(algorithm, lambda agent, x: float(x[0]), rounds, jr.key(1), **given)

    with pytest.warns(RuntimeWarning, match="have 1 observations before the first round, and .* 2"):
        go("few", initial=1)
    go("enough", initial=2)
    rows = np.random.default_rng(0).random((1, 3, 2)), np.zeros((1, 3))
    go("known", initial=1, known=rows)
    go("no round", rounds=0)
    # A state that has had its first round: the release is no first one.
    state, trace = go("begun", initial=2)
    go("goes on", state=state, ledger=trace.ledger)
