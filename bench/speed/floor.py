"""The least that a round can take on its machine.

    floor of an agent and round = max(bytes / bandwidth, operations / rate)

`moved` are the bytes of an agent's observations by then, on features, half of its capacity on average,
read once to ask and once to tell. `operations` are the operations of the sampled function at all
candidates (where DP-FTS-DE follows the broadcast that is one function for all), and of value, gradient
and products with the Hessian at every point that the search for its maximum visits; random numbers and
cosines are not counted. The rate is that of a product of matrices like the first, measured in the same
process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Float

from bench.common.timing import best
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing import maximize
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.runs.compiled import run
from jaxbo.runs.trace import Summary, summary
from jaxbo.types import Key

CANDIDATES = 1000
#: Steps that the last climbs take more, by the default of `maximize`.
STEPS = 3


@dataclass(frozen=True)
class Case:
    """A size; `chunk` agents of a device are computed at the same time."""

    kind: str = "FTS"
    agents: int = 1000
    rounds: int = 20
    features: int = 100
    dim: int = 2
    devices: int = 1
    chunk: int | None = None


def algorithm(case: Case) -> FTS | DPFTSDE:
    kernel = SquaredExponential(0.2 * (case.dim / 2) ** 0.5)
    features = Fixed(kernel, size=case.features, noise=1e-2, capacity=case.rounds)
    domain = Cube(case.dim)
    if case.kind == "FTS":
        return FTS(domain, case.agents, features=features, candidates=CANDIDATES)
    mechanism = Mechanism(1.0, 11.0, Poisson(0.25))
    sums = {"candidates": CANDIDATES, "releases": jnp.inf}
    return DPFTSDE(domain, case.agents, mechanism, features=features, **sums)


def rounds(case: Case, mesh: Mesh | None = None) -> tuple[Callable[..., Summary], Array]:
    """All rounds as a program of a key and of the agents' optima, the objective inside; and optima."""
    method = algorithm(case)

    def program(key: Key, optima: Float[Array, "agents dim"]) -> Summary:
        def objective(key: Key, agent: Any, x: Any) -> Any:
            return -jnp.sum((x - optima[agent]) ** 2) + 0.01 * jr.normal(key)

        return run(
            method, objective, case.rounds, key, record=summary, mesh=mesh, chunk=case.chunk
        )[1]

    return program, jr.uniform(jr.key(1), (case.agents, case.dim), minval=0.4, maxval=0.6)


def seconds(case: Case, read: float, fastest: float) -> float:
    """The floor of all rounds on a device that reads and computes so much a second."""
    each = max(moved(case) / read, operations(case) / fastest)
    return case.rounds * case.agents * each


def moved(case: Case) -> float:
    """Bytes of an agent and round: a number for each feature and observation, twice."""
    return 2 * 4.0 * case.features * case.rounds / 2


def operations(case: Case) -> float:
    """Operations of an agent and round."""
    method = algorithm(case)
    share = 1.0
    if isinstance(method, DPFTSDE):
        rounds = jnp.arange(1, case.rounds + 1)
        share = float(jnp.mean(jax.vmap(method.mixing)(rounds)))
    return share * at_candidates(case) + in_search(case)


def at_candidates(case: Case) -> float:
    """Operations of a function at all candidates."""
    return 2.0 * CANDIDATES * case.features


def in_search(case: Case) -> float:
    """Operations of the search for a function's maximum."""
    # Phases, gradient, and two for every product with the Hessian; half of the features are frequencies.
    products = 2 + 2 * min(case.dim, maximize.PRODUCTS)
    return visited(case) * products * 2.0 * case.dim * case.features / 2


def visited(case: Case) -> int:
    """Points where the search looks."""
    starts = maximize.default_starts(case.dim)
    if starts <= maximize.TOGETHER:
        return starts * (maximize.trials_together(case.dim) + STEPS)
    width, heats = maximize.heats_of(starts, maximize.ROUNDS, maximize.TOGETHER)
    trials = [trials for _, trials in maximize.ROUNDS]
    trials[-1] += STEPS
    return width * sum(count * of_each for count, of_each in zip(heats, trials, strict=True))


def rate(case: Case) -> float:
    """Operations a second of the product that is the functions of many agents at all candidates.

    On a GPU it is a large square product: the other product would measure how fast it writes.
    """
    rows, inner, columns = CANDIDATES, case.features, 4096
    if jax.devices()[0].platform == "gpu":
        rows = inner = columns = 8192
    a = jr.normal(jr.key(0), (rows, inner))
    b = jr.normal(jr.key(1), (inner, columns))
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision="highest"))
    return 2.0 * rows * inner * columns / best(lambda: product(a, b), 100)
