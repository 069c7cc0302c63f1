"""Controls of the private curve, and populations: what is compared, and how loud noise is."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.common import alike, messages
from bench.dp import controls, population, signal
from jaxbo.algos.dp_fts_de import BROADCAST
from jaxbo.domains.base import Cube
from jaxbo.objectives.families import OnGrid
from jaxbo.privacy import accounting
from jaxbo.privacy.mechanism import Poisson
from jaxbo.runs.compiled import run

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")


def small() -> OnGrid:
    """Nothing to search through."""
    points = Cube(2).sample(jr.key(1), 40)
    return OnGrid(jnp.sin(5 * points @ jr.normal(jr.key(2), (2, 8))).T, points)


@pytest.mark.full
def test_noise_alone_asks_all_who_listen_for_one_point(key):
    objective = small()
    algorithm = controls.method(controls.NOISE, objective, 1)
    trace = run(algorithm, objective, 1, key, initial=2)[1]
    listens = np.asarray(trace.info.source[0]) == BROADCAST
    assert listens.any()
    assert len(np.unique(np.asarray(trace.queries[2])[listens], axis=0)) == 1


@pytest.mark.full
def test_noise_over_signal_is_in_proportion_to_z(key):
    objective, own = small(), messages.longer(controls.FEATURES, capacity=4)

    def ratios(name):
        algorithm = controls.listening(controls.PRIVATE[name], objective, own)
        keys = jr.split(key, 2)
        return np.asarray(signal.ratios(algorithm, objective, 2, objective.points, keys, 2))

    once, twice = ratios("z = 1.0, q = 0.35"), ratios("z = 2.0, q = 0.35")
    assert (once > 0).all()
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)


def test_controls_are_compared_early_and_at_the_end():
    noise = 0.001 * np.random.default_rng(0).standard_normal((30, 25))
    levels = dict.fromkeys(controls.METHODS, 0.3) | {controls.ALONE: 0.2, controls.LONGER: 0.1}
    curves = {f"har: {name}": level + noise for name, level in levels.items()}
    ratios = {f"har: {name}": np.full(5, 2.0) + noise[:5, 0] for name in controls.NOISY}
    found = controls.checks(curves, ratios)
    assert len(found) == len(controls.NOISY) + 2 * (len(controls.PAIRS) + len(controls.PRIVATE))
    assert found["har: TS below random search, the end, difference"].holds
    assert found["har: FTS-DE below TS, rounds 1 to 20, difference"].refuted
    assert found["har: z = 1.0, q = 0.35: noise above the signal, ratio"].holds
    same = "z = 4.0, q = 0.35 no further from noise alone than 0.005, the end, difference"
    assert found[f"har: {same}"].holds


@pytest.mark.full
def test_a_population_pays_the_loss_that_its_name_says():
    for agents, epsilon in ((200, 1.0), (10_000, 0.25)):
        z = population.noise(epsilon, agents, 3)
        algorithm = population.method(population.label(epsilon), agents, 10)
        spent = accounting.epsilon(
            algorithm.mechanism, 10, population.delta(agents), accounting.pld
        )
        assert spent == pytest.approx(epsilon, rel=1e-3)
        assert z < float(algorithm.mechanism.z)  # fewer rounds cost less
        assert isinstance(algorithm.mechanism.sampling, Poisson)


def test_the_common_part_of_functions_is_that_of_any_number_of_agents(key):
    few, many = alike.drawn(key, 3)[0].weights, alike.drawn(key, 300)[0].weights
    common = np.asarray(many).mean(axis=0)
    assert np.corrcoef(np.asarray(few).mean(axis=0), common)[0, 1] > 0.8


def test_claims_on_populations_are_about_the_noise_and_mean_regret():
    noise = 0.001 * np.random.default_rng(0).standard_normal((10, 6))
    levels = dict.fromkeys(population.METHODS, 0.5) | {population.OPEN: 0.3, "ε = 4": 0.4}
    regret, ratios = {}, {}
    for agents in (200, 1000):
        for name, level in levels.items():
            regret[f"{agents} agents, {name}"] = level + noise
            if name.startswith("ε"):
                ratios[f"{agents} agents, {name}"] = 200 / agents + 0.1 + noise[:, 0]
    regret["1000 agents, ε = 1"] = 0.31 + noise
    outcomes = {c: str(check.outcome) for c, check in population.checks(regret, ratios).items()}
    assert list(outcomes.values()) == [
        *("refuted", "undecided", "refuted", "holds"),
        *("holds", "holds", "holds", "holds"),
        "holds",
    ], outcomes
