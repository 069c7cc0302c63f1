"""A federation that ends at any call that changes files goes on, and keeps its promises."""

import jax.random as jr
import numpy as np
import pytest

import jaxbo
from jaxbo.federation import Coordinator, Owner, RefusedError, SecureSum, observations
from tests.runs.driven import Interrupting
from tests.walk import LEDGER, SumWalk, Walk

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")

AGENTS, ROUNDS, INITIAL = 3, 2, 1
SQUARE = jaxbo.Cube(2)
#: So little noise that queries are nearly those without.
QUIET = jaxbo.Mechanism(3e-4, 10.0, jaxbo.Poisson(1.0))
PRIVATE = SumWalk(SQUARE, AGENTS, mechanism=QUIET)
SECURE = {"secure": SecureSum(threshold=3)}
#: The method, options of the server, and options of owners.
KINDS = {
    "plain": (Walk(SQUARE, AGENTS), {}, {}),
    "ledger": (PRIVATE, {"ledger": LEDGER}, {}),
    "owners' ledgers": (PRIVATE, {"ledger": LEDGER}, {"ledger": LEDGER}),
    "secure sums": (PRIVATE, {"ledger": LEDGER} | SECURE, SECURE),
}
#: Kinds whose files secure sums have too.
LEDGERS = ("ledger", "owners' ledgers")


class KilledError(BaseException):
    """The end of a process: nothing catches it."""


class Federation:
    """A server and owners, whose files outlive them."""

    def __init__(self, kind, path):
        self.algorithm, self.of_server, self.of_owners = KINDS[kind]
        self.path, self.server, self.evaluated = path, None, []
        for n in range(AGENTS):
            (path / str(n)).mkdir(parents=True, exist_ok=True)

    def objective(self, agent, x):
        self.evaluated.append((agent, *np.round(np.asarray(x, float), 6)))
        return -float(np.sum((np.asarray(x, np.float64) - 0.2 * (1 + agent)) ** 2))

    def whole(self):
        """Goes on to the end from the files that there are."""
        path, key = self.path / "server.npz", jr.key(7)
        self.server = Coordinator(
            self.algorithm, ROUNDS, key, path, initial=INITIAL, **self.of_server
        )
        for _ in range(20 * ROUNDS):  # a stage that fails is asked again
            if self.server.done:
                return
            for n in range(AGENTS):
                request = self.server.request(n)
                folder = self.path / str(n)
                owner = Owner(self.algorithm, self.objective, n, folder, key=key, **self.of_owners)
                try:
                    self.server.hear(owner.answer(request))
                except RefusedError:  # heard already, or this owner was away in an earlier stage
                    continue
            self.server.close()
        raise AssertionError("it does not come to its end")

    def stop(self):
        if self.server is not None:
            self.server.stop()

    def known(self):
        name = f"{self.server.request().federation}.npz"
        found = [observations(self.path / str(n) / name) for n in range(AGENTS)]
        return np.stack([one.queries for one in found])


def moments(kind, step, folder, monkeypatch):
    """Federations that ended at every `step`-th moment, and have gone on."""
    moment, ended = 0, True
    while ended:
        moment += step
        federation = Federation(kind, folder / str(moment))
        with monkeypatch.context() as patch:
            Interrupting(moment, patch, KilledError)
            try:
                federation.whole()
                ended = False
            except KilledError:
                pass
        federation.stop()
        federation.server = None
        federation.whole()
        yield moment, federation
        federation.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("plain", 61),
        ("secure sums", 151),
        *(pytest.param(kind, 61, marks=pytest.mark.full) for kind in LEDGERS),
        *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in KINDS),
    ],
)
@pytest.mark.timeout(1800)
def test_a_federation_that_ends_at_any_call_that_changes_files_goes_on(
    kind, step, tmp_path, monkeypatch
):
    undisturbed = Federation(kind, tmp_path / "undisturbed")
    undisturbed.whole()
    expected, last = undisturbed.known(), 0
    for last, federation in moments(kind, step, tmp_path, monkeypatch):
        found = federation.known()
        if kind == "plain":
            np.testing.assert_array_equal(found, expected, err_msg=str(last))
        else:  # noise is drawn anew, and is small
            np.testing.assert_allclose(found, expected, atol=0.01, err_msg=str(last))
        # The evaluation under way may have been lost.
        assert len(federation.evaluated) <= AGENTS * (INITIAL + ROUNDS) + 1, last
        assert len(set(federation.evaluated)) <= AGENTS * (INITIAL + ROUNDS) + 1
        if kind != "plain":
            charged = federation.server.ledger.releases
            assert charged >= undisturbed.server.ledger.releases, last
            assert charged <= undisturbed.server.ledger.releases + 1
    assert last > max(60, 2 * step)  # it was ended, twice or more
    undisturbed.stop()
