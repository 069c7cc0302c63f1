"""Arguments of what takes results, or tells of them, given values of a wrong kind."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxbo
from tests.arguments.wrong import all_work_or_say_why

pytestmark = pytest.mark.usefixtures("as_users_have_it")

CUBE, KEY = jaxbo.Cube(2), jr.key(0)
SMALL = jaxbo.Fixed(size=4, capacity=30)
WORKER = jaxbo.EGP(CUBE, SMALL, jaxbo.Thompson(), candidates=4)
BOUNDED = jaxbo.EGP(
    CUBE, SMALL, jaxbo.Thompson(), candidates=4, outcomes=[jaxbo.Outcome("latency", at_most=1.0)]
)
TS = jaxbo.TS(CUBE, 2, SMALL, candidates=4)
X, Y = np.full((3, 2, 2), 0.5), np.zeros((3, 2))
TRACE = jaxbo.Trace(jnp.asarray(X, float), Y, ())


def told(call, method=WORKER):
    """A call of a desk of its own, one of whose queries is out."""

    def calls(**arguments):
        desk = jaxbo.Desk(method, KEY, initial=20, first=[[0.5, 0.5]])
        desk.ask()
        return getattr(desk, call)(**arguments)

    return calls


def warm_start(method):
    state = method.init(KEY)
    return lambda queries, values: method.warm_start(state, queries, values)


TABLE = {
    "warm_start": (
        TS.warm_start,
        {"state": TS.init(KEY), "queries": X, "values": Y},
    ),
    "warm_start of one": (warm_start(WORKER), {"queries": X[:, 0], "values": Y[:, 0]}),
    "warm_start with outcomes": (
        warm_start(BOUNDED),
        {"queries": X[:, 0], "values": {"value": Y[:, 0], "latency": Y[:, 0]}},
    ),
    "warm_start with an outcome": (
        lambda latency: warm_start(BOUNDED)(X[:, 0], {"value": Y[:, 0], "latency": latency}),
        {"latency": Y[:, 0]},
    ),
    "tell": (told("tell"), {"number": 0, "value": 0.1}),
    "tell with outcomes": (
        told("tell", BOUNDED),
        {"number": 0, "value": {"value": 0.1, "latency": 0.2}},
    ),
    "tell with an outcome": (
        lambda latency: told("tell", BOUNDED)(number=0, value={"value": 0.1, "latency": latency}),
        {"latency": 0.2},
    ),
    "tell_new": (told("tell_new"), {"x": [0.5, 0.5], "value": 0.1}),
    "fail": (told("fail"), {"number": 0, "error": "no"}),
    "noise_key": (told("noise_key"), {"number": 0}),
    "table": (TRACE.table, {"domain": CUBE}),
    "to_csv": (TRACE.table().to_csv, {"path": "results.csv"}),
    "best": (
        jaxbo.best,
        {"algorithm": TS, "state": TS.init(KEY), "trace": TRACE},
    ),
    "replay": (lambda trace: jaxbo.replay(TS, trace, KEY), {"trace": TRACE}),
}


@pytest.mark.filterwarnings("ignore:query 0 failed")
@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_result_works_or_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a table may be written
    make, good = TABLE[name]
    make(**good)
    all_work_or_say_why(TABLE, name)
