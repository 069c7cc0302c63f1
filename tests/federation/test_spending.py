"""An owner's own ledger: all federations with its data are charged in a file, before a message leaves."""

import logging
import threading

import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.federation import Coordinator, Owner, RefusedError, SecureSum, observations
from jaxbo.federation._spending import NAME, Spending
from jaxbo.federation._stages import KEYS, MASKED
from tests.walk import PrivateWalk, SumWalk, Walk

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

AGENTS, KEY = 3, jr.key(5)
SQUARE = jaxbo.Cube(2)
MECHANISM = jaxbo.Mechanism(2.0, 5.0, jaxbo.Poisson(1.0))
PRIVATE = PrivateWalk(SQUARE, AGENTS, mechanism=MECHANISM)
SUMS = SumWalk(SQUARE, AGENTS, mechanism=MECHANISM)
SECURE = SecureSum(threshold=3)
EMPTY = jaxbo.Ledger(1e-5, accountant=jaxbo.accounting.moments)


def paying(releases, mechanism=MECHANISM):
    """A ledger whose budget pays for so many releases, and no more."""
    spent = EMPTY.charge(mechanism, releases).epsilon()
    return jaxbo.Ledger(1e-5, budget=1.0001 * spent, accountant=jaxbo.accounting.moments)


def objective(agent, x):
    return -float(np.sum((np.asarray(x, np.float64) - 0.2) ** 2))


class Federations:
    """Servers that ask the same owner, agent 0, and others who have no ledger."""

    def __init__(self, path, ledger, algorithm=PRIVATE, secure=None, objective=objective):
        self.path, self.ledger, self.objective = path, ledger, objective
        self.algorithm, self.secure = algorithm, secure
        for n in range(AGENTS):
            (path / str(n)).mkdir(exist_ok=True)

    def server(self, name, rounds=9):
        options = {"initial": 1, "secure": self.secure, "ledger": EMPTY}
        return Coordinator(self.algorithm, rounds, KEY, self.path / f"{name}.npz", **options)

    def owner(self, n=0):
        """Started anew for each request, as a process that was killed."""
        options = {"secure": self.secure, "ledger": self.ledger if n == 0 else None}
        return Owner(self.algorithm, self.objective, n, self.path / str(n), **options)

    def exchange(self, server, owners=range(AGENTS)):
        for n in owners:
            server.hear(self.owner(n).answer(server.request(n)))
        server.close()

    @property
    def releases(self):
        file = self.path / "0" / NAME
        return EMPTY.charged(file.read_text()).releases if file.exists() else 0

    @property
    def evaluations(self):
        files = (self.path / "0").glob("*.npz")
        return sum(observations(file).values.size for file in files)


def test_federations_with_the_same_data_share_a_budget(tmp_path, caplog):
    ring = Federations(tmp_path, paying(3))
    one, other = ring.server("one"), ring.server("other")
    with caplog.at_level(logging.INFO):
        ring.exchange(one, [0])
        ring.exchange(other, [0])
        ring.exchange(one, [0])
    spent, budget = EMPTY.charge(MECHANISM, 3).epsilon(), ring.ledger.budget
    lines = [r.getMessage() for r in caplog.records if "spent" in r.getMessage()]
    assert len(lines) == 3
    assert f"epsilon {spent:.3g} spent, {budget - spent:.3g} left" in lines[-1]
    evaluations = ring.evaluations
    for server in (one, other):
        said = f"epsilon {budget:.4g} at delta 1e-05: 3 releases have spent {spent:.4g}"
        with pytest.raises(RefusedError, match=said):
            ring.owner().answer(server.request())
    assert (ring.releases, ring.evaluations) == (3, evaluations)  # nor is anything evaluated


def test_a_request_that_is_answered_again_is_charged_once(tmp_path):
    ring = Federations(tmp_path, paying(2))
    one, other = ring.server("one"), ring.server("other")
    requests = [one.request(), other.request()]
    for _ in range(3):
        first, second = (ring.owner().answer(request) for request in requests)
    assert ring.releases == 2
    assert first.federation != second.federation


def test_a_message_is_charged_before_it_is_made(tmp_path):
    def fails(agent, x):
        assert ring.releases == 1  # the evaluation is after the charge
        raise KeyboardInterrupt

    ring = Federations(tmp_path, paying(1), objective=fails)
    server = ring.server("one")
    with pytest.raises(KeyboardInterrupt):
        ring.owner().answer(server.request())
    ring.objective = objective
    server.hear(ring.owner().answer(server.request()))
    assert ring.releases == 1


def test_rounds_without_a_release_cost_nothing(tmp_path):
    few = PrivateWalk(SQUARE, AGENTS, mechanism=MECHANISM, releases=1)
    ring = Federations(tmp_path, paying(1), few)
    server = ring.server("one")
    for _ in range(3):
        ring.exchange(server, [0])
    assert ring.releases == 1


def test_a_secure_sum_is_charged_when_a_masked_message_leaves(tmp_path):
    ring = Federations(tmp_path, paying(1), SUMS, SECURE)
    server = ring.server("one")
    while server.stage != MASKED:
        ring.exchange(server)
        assert ring.releases == 0  # keys and shares tell nothing
    request = server.request(0)
    first, again = (ring.owner().answer(request).message for _ in range(2))
    assert ring.releases == 1
    np.testing.assert_array_equal(*(message["['masked']"] for message in (first, again)))
    ring.exchange(server)
    ring.exchange(server)
    assert (server.round, server.stage) == (0, KEYS)
    evaluations = ring.evaluations
    with pytest.raises(RefusedError, match="1 releases have spent"):
        ring.owner().answer(server.request())
    assert (ring.releases, ring.evaluations) == (1, evaluations)


def test_a_sum_that_ends_early_costs_an_owner_nothing(tmp_path):
    ring = Federations(tmp_path, paying(1), SUMS, SECURE)
    server = ring.server("one")
    ring.exchange(server, [0])  # below the threshold
    assert (server.round, ring.releases) == (0, 0)


def test_charges_at_the_same_time_are_all_kept(tmp_path):
    def charges(name):
        for round in range(20):
            Spending(tmp_path, EMPTY).charge(name, round, MECHANISM)

    threads = [threading.Thread(target=charges, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert EMPTY.charged((tmp_path / NAME).read_text()).releases == 60


def test_what_was_spent_before_counts(tmp_path):
    ring = Federations(tmp_path, paying(2).charge(MECHANISM))
    server = ring.server("one")
    ring.exchange(server, [0])
    with pytest.raises(RefusedError, match="2 releases have spent"):
        ring.owner().answer(server.request())


def test_a_file_of_charges_that_was_changed_is_refused(tmp_path):
    ring = Federations(tmp_path, EMPTY)
    server, file = ring.server("one"), tmp_path / "0" / NAME
    ring.exchange(server, [0])
    whole = file.read_text()
    for damaged in (whole[:-9], whole.replace('"count": 1', '"count": 0'), "", "{}"):
        file.write_text(damaged)
        with pytest.raises(jaxbo.CheckpointError, match="is damaged"):
            ring.owner().answer(server.request())
    file.write_text(whole)
    ring.ledger = EMPTY.charge(MECHANISM, 2)
    with pytest.raises(jaxbo.CheckpointError, match="fewer charges"):
        ring.owner().answer(server.request())


def test_data_with_charges_is_never_asked_without_a_ledger(tmp_path):
    ring = Federations(tmp_path, paying(9))
    ring.exchange(ring.server("one"), [0])
    ring.ledger = None
    with pytest.raises(ValueError, match="give the owner a ledger"):
        ring.owner()


def test_a_method_whose_messages_no_release_covers_has_no_ledger(tmp_path):
    with pytest.raises(ValueError, match="releases nothing private"):
        Owner(Walk(SQUARE, AGENTS), objective, 0, tmp_path, ledger=EMPTY)
