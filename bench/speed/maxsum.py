"""Max-sum: an iteration beside reading its tables once, and its answers beside the exact maximum.

The floor of an iteration is the bytes of all tables over the bandwidth with which an array that no
cache holds is read on the same machine. Answers are compared with the answers of toulbar2, an exact
solver of weighted constraint networks, if `pytoulbar2` is installed.
"""
# pyright: reportMissingImports=false

import importlib.util
from typing import Any

import jax
import jax.random as jr
import numpy as np

from bench import claims
from bench.common.timing import Figure, bandwidth, race
from jaxbo._check import require
from jaxbo.kernels.factors import maxsum, tree
from jaxbo.kernels.factors.graph import FactorGraph, Tables, value
from jaxbo.types import Key

#: name -> factors, their arity, variables, grid points.
SHAPES = {
    "300 pairs of 100 variables on 50 points": (300, 2, 100, 50),
    "100 triples of 60 variables on 30 points": (100, 3, 60, 30),
    "1811 pairs of 1811 variables on 32 points": (1811, 2, 1811, 32),
}
ITERATIONS = 30
#: Milliseconds that PGMax 0.6.1, its last release, took for as many on another machine; it needs jax 0.4.
PGMAX = dict(zip(SHAPES, (246, 1272, 648), strict=True))
#: For the exact solver: graphs, and their shapes, as above.
GRAPHS, SMALL = 20, {"30 pairs": (30, 2, 15, 12), "15 triples": (15, 3, 12, 8)}
#: Its costs are whole numbers: tables are rounded to this.
DIGIT = 1e-4


def _graph(key: Key, shape: tuple[int, int, int, int]) -> tuple[FactorGraph, Tables]:
    """Random scopes, every variable in at least one of them if there are enough, and tables."""
    factors, arity, variables, points = shape
    rng = np.random.default_rng(np.asarray(jr.key_data(key)))
    scopes = []
    for number in range(factors):
        others = rng.permutation(variables)
        first = number % variables
        scopes.append([first, *[int(v) for v in others if v != first][: arity - 1]])
    graph = FactorGraph((points,) * variables, scopes)
    (group,) = graph.groups
    return graph, (jr.normal(key, (len(group.variables), *group.shape)),)


def iteration_figures(key: Key, repeats: int) -> list[Figure]:
    """A damped iteration of every shape, without looking whether it has settled."""
    found, rate = [], bandwidth(repeats)
    for name, shape in SHAPES.items():
        graph, tables = _graph(key, shape)

        @jax.jit
        def iterate(tables: Tables, graph: FactorGraph = graph) -> Any:
            start = maxsum.start(graph, tables)
            body = lambda _, messages: maxsum.step(graph, tables, messages, 0.5)  # noqa: E731
            return jax.lax.fori_loop(0, ITERATIONS, body, start)

        seconds = race({"iterations": lambda: iterate(tables)}, repeats)["iterations"]  # noqa: B023
        each = float(seconds.min()) / ITERATIONS
        floor = sum(table.nbytes for table in tables) / rate
        found.append(
            Figure(
                f"max-sum, {name}: an iteration over its floor of {1e6 * floor:.0f} us",
                each / floor,
                "times",
                goal="<= 4",
                values=tuple(float(s) / ITERATIONS / floor for s in seconds),
            )
        )
        taken = each * ITERATIONS * 1e3
        faster = PGMAX[name] / taken
        found.append(
            Figure(
                f"max-sum, {name}: {ITERATIONS} iterations",
                taken,
                "ms",
                f"PGMax 0.6.1 on another machine of two cores, {PGMAX[name]} ms",
                faster,
                goal=">= 30 x",
            )
        )
    return found


def chain_figures(key: Key, repeats: int, variables: int = 1811, points: int = 32) -> list[Figure]:
    """The maximum on a long chain, by two sweeps and by messages that go on until they settle."""
    graph = FactorGraph((points,) * variables, [(v, v + 1) for v in range(variables - 1)])
    tables = (jr.normal(key, (variables - 1, points, points)),)

    @jax.jit
    def messages(tables: Tables) -> Any:
        settled, _ = maxsum.settle(graph, tables, iterations=variables, damping=0.0, tolerance=0.0)
        return maxsum.decode(graph, tables, settled)

    sweeps = jax.jit(lambda tables: tree.maximize(graph, tables))
    calls = {"sweeps": lambda: sweeps(tables), "messages": lambda: messages(tables)}
    one, other = (float(value(graph, tables, call())) for call in calls.values())
    require(abs(one - other) < 1e-5 * abs(one), f"{one} and {other} are no maximum both.")
    seconds = {name: each.min() for name, each in race(calls, repeats).items()}
    return [
        Figure(
            f"a chain of {variables} variables on {points} points: its maximum",
            1e3 * seconds["sweeps"],
            "ms",
            "messages until they settle",
            seconds["messages"] / seconds["sweeps"],
        )
    ]


def gap_figures(key: Key) -> list[Figure]:
    """How far answers of messages are below the maximum, and whether the bound was ever violated."""
    found: list[Figure] = []
    if importlib.util.find_spec("pytoulbar2") is None:
        return found
    for kind, shape in SMALL.items():
        gaps, slack, violated = [], [], 0
        for one in jr.split(key, GRAPHS):
            graph, tables = _graph(one, shape)
            solution = jax.jit(lambda t, g=graph: maxsum.solve(g, t, most_cells=0))(tables)
            most = exact(graph, tables)
            gaps.append((most - float(solution.value)) / abs(most))
            slack.append(float(solution.gap) / abs(most))
            violated += float(solution.bound) < most - DIGIT * shape[0]
        name = f"max-sum on {GRAPHS} loopy graphs of {kind}: "
        found += [
            Figure(
                name + "median gap",
                float(np.median(gaps)),
                "of the maximum",
                goal="<= 0.01",
                values=tuple(gaps),
                sample=claims.MEDIAN,
            ),
            Figure(name + "largest gap", max(gaps), "of the maximum"),
            Figure(name + "median gap that is claimed", float(np.median(slack)), "of the maximum"),
            Figure(name + "bounds violated", violated, "graphs", goal="<= 0"),
        ]
    return found


def exact(graph: FactorGraph, tables: Tables) -> float:
    """The maximum, by toulbar2, of rounded tables."""
    import pytoulbar2

    problem = pytoulbar2.CFN(vac=0)
    for v, size in enumerate(graph.sizes):
        problem.AddVariable(f"x{v}", range(size))
    total = 0.0
    for group, table in zip(graph.groups, tables, strict=True):
        for scope, values in zip(np.asarray(group.variables), np.asarray(table), strict=True):
            largest = float(values.max())
            costs = np.round((largest - values) / DIGIT).astype(int)
            problem.AddFunction([int(v) for v in scope], costs.ravel().tolist())
            total += largest
    solved = problem.Solve()
    assert solved is not None, "there is always a solution"
    return total - solved[1] * DIGIT
