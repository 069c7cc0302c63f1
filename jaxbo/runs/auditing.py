"""An attack on a private method in whole runs: does it leak more of an owner than it claims?

An owner sends the worst message there is, or never takes part. All others do as in any run: they send,
query, evaluate and learn, and now and then an owner is absent. The attacker knows all that others send
and, under Poisson sampling, which of them were drawn. Their draws are independent of the owner's. So the
guarantee holds against this attacker, too. The rest of a release is the owner's part and the noise. The
attacker adds up the log likelihood ratios of all rounds (`jaxbo.privacy.auditing`).

If a fixed number of owners is drawn, the draws of the others tell about the owner's draw. Then the
attacker does not know them, and takes away the sum that is expected of the others.

With secure sums owners add the noise. The attacker then is the server, with the owners who collude. In
the second world the owner takes part, and its vector is 0. `jaxbo.runs._in_shares` makes the sums.
"""

from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxbo._check import positive_number, require, shown, whole
from jaxbo._keys import aside, unwrap, wrap
from jaxbo.algos.base import _secure
from jaxbo.algos.base.federated import FederatedState
from jaxbo.algos.base.keys import ask_keys, release_keys, round_keys, run_keys
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.kernels.linalg import dot
from jaxbo.privacy import accounting
from jaxbo.privacy.auditing import Audit, bound, largest, log_ratio
from jaxbo.privacy.distributed import SecureSum
from jaxbo.privacy.mechanism import Mechanism, Relation, clip
from jaxbo.runs import _in_shares, _steps
from jaxbo.runs._arguments import check_arguments
from jaxbo.runs._plan import Compiled, Plan, evaluate_all
from jaxbo.runs.compiled import _run, check_objective, check_sizes
from jaxbo.types import Count, Features, Flag, Key, Scalar

#: How much longer its message is than allowed: clipping is on trial, too.
_LONGER = 3.0
#: Runs that are computed at the same time.
_AT_ONCE = 100

#: The state of a method, and the statistic so far.
Carry: TypeAlias = tuple[FederatedState, Scalar]


def audit(
    algorithm: AbstractPrivate,
    objective: Compiled,
    rounds: int,
    key: Key,
    *,
    runs: int = 10_000,
    delta: float | None = None,
    initial: int = 0,
    dropout: float = 0.1,
    confidence: float = 0.95,
    accountant: accounting.Accountant | None = None,
    secure: SecureSum | None = None,
) -> Audit:
    """A lower bound on the privacy loss of a method, by an attack in whole runs, beside its claim.

    The owner that counts the most sends the worst message there is, or never takes part. An attacker
    who knows everything but that owner and the noise tells the two apart as well as possible. The bound
    holds with the stated confidence. If it is above the claimed ε, the claim is wrong, but for bad luck.
    If it is below, no fault was found, which is no proof of privacy.

    With `secure` owners round their messages and add shares of the noise, by the functions of a
    federation. The attacker is the server with `colluding` owners, and names `threshold` owners in each
    sum. In place of not taking part, the attacked owner adds 0. Masks are not tried, nor a server that
    lies about keys or owners. Shares come from the operating system's randomness, so two audits with
    the same key differ.

    All runs are simulations. They begin in the same state, and so have the same features. Use an
    objective that is public, never an owner's data.

    Args:
        algorithm: A private method with noise, such as `DPFTSDE` or `DPLearnedPrior`, or a subclass of
            `AbstractPrivate`.
        objective: The objective of the other owners, a JAX function as in `run`.
        rounds: Rounds of each run, 1 or more.
        key: A key of `jax.random.key`.
        runs: Runs with the owner, and as many without, 100 or more. By default 10 000. More runs
            prove more.
        delta: δ of the claim, in (0, 1). By default `accounting.delta_for` of the method's agents.
        initial: Points that each owner evaluates before the first round, 0 or more. By default 0.
        dropout: The probability with which each other owner is absent in a round, in [0, 1). By default
            0.1.
        confidence: The probability that the bound is right, in (0, 1). By default 0.95.
        accountant: The accountant of the claim, as in `accounting.epsilon`. By default the tightest.
        secure: The settings of secure sums that owners and the server have. By default none: the server
            adds the noise. It needs the extra `secure`.

    Returns:
        A frozen `Audit` with `lower`, `claimed` and `broken`. `print` shows it in a sentence.

    Raises:
        ValueError: The method is not private, has no noise or no release in these rounds, a number is
            out of its range, or `secure` does not fit the method.

    Example:
        >>> import jax.random as jr, numpy as np, jaxbo
        >>> points = jaxbo.Finite(np.asarray([[0.0], [0.5], [1.0]]))
        >>> private = jaxbo.DPFTSDE(points, 3, features=jaxbo.Fixed(size=4))
        >>> found = jaxbo.audit(private, lambda x: -x[0], 3, jr.key(0), runs=100)
        >>> found.broken
        False
    """
    check_arguments(algorithm, key, objective)
    require(
        isinstance(algorithm, AbstractPrivate),
        f"algorithm must be a private method, such as DPFTSDE, got {shown(algorithm)}: nothing is "
        "claimed of others.",
    )
    whole("rounds", rounds, least=1)
    whole("runs", runs, least=100)
    check_sizes(algorithm, rounds, initial, None, None)
    positive_number("confidence", confidence)
    require(confidence < 1, f"confidence must be below 1, got {confidence}: no bound is certain.")
    require(
        isinstance(dropout, int | float) and 0 <= dropout < 1,
        f"dropout must lie in [0, 1), got {dropout}: it is the probability of being absent.",
    )
    delta = accounting.delta_for(algorithm.agents) if delta is None else delta
    count = sum(algorithm.released(t) is not None for t in range(rounds))
    require(
        count > 0,
        f"there is no release in {rounds} rounds: give the method releases of 1 or more.",
    )
    if secure is not None:
        _secure.check(algorithm, secure)
    claim = [accounting.event(algorithm.mechanism, count)]
    claimed = accounting.loss(accountant, claim, delta)
    objective = check_objective(algorithm, objective)
    victim = _most_heard(algorithm, rounds)
    start = _steps.init(algorithm, aside(key), jax.vmap)  # for all runs, since it may take long
    whole_run = _Attack(algorithm, objective, start, victim, int(rounds), int(initial), secure)
    one_key, other_key = jr.split(key)
    # Both worlds have the same noise of owners: each probability is bounded by itself.
    shares = _shares(whole_run, runs)
    one = _ratios(whole_run, one_key, True, float(dropout), runs, shares)
    other = _ratios(whole_run, other_key, False, float(dropout), runs, shares)
    return Audit(
        lower=bound(one, other, delta, confidence),
        claimed=float(claimed),
        delta=float(delta),
        confidence=float(confidence),
        runs=int(runs),
        rounds=int(rounds),
        most=largest(runs, delta, confidence),
    )


class _Attack(eqx.Module):
    """The arguments that all runs share, and the state in which they begin."""

    algorithm: AbstractPrivate
    objective: Any
    start: FederatedState
    victim: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)
    initial: int = eqx.field(static=True)
    secure: SecureSum | None = eqx.field(static=True, default=None)


def _most_heard(algorithm: AbstractPrivate, rounds: int) -> int:
    """The owner that counts the most in the releases of these rounds."""
    due = [t for t in range(rounds) if algorithm.released(t) is not None]
    weights = np.stack([np.asarray(algorithm.weights(jnp.asarray(t))) for t in due])
    return int(np.argmax(np.sum(weights**2, axis=(0, 1))))


def _shares(attack: _Attack, runs: int) -> UInt32[np.ndarray, "runs rounds numbers"] | None:
    """The noise that owners add in all rounds of all runs; None if the server adds it."""
    if attack.secure is None:
        return None
    return _in_shares.noise(attack.algorithm, attack.secure, runs, attack.rounds)


def _ratios(
    attack: _Attack,
    key: Key,
    takes_part: bool,
    dropout: float,
    runs: int,
    shares: UInt32[np.ndarray, "runs rounds numbers"] | None = None,
) -> Float[np.ndarray, " runs"]:
    """The statistic of all runs in a world. Both worlds share a program, whatever the number of runs."""
    parts = -(-runs // _AT_ONCE)
    known = jnp.asarray(takes_part), jnp.asarray(dropout)
    keys = jr.split(key, (parts, _AT_ONCE))
    found = []
    for n, some in enumerate(keys):
        own = None
        if shares is not None:  # the last part has fewer, and is filled up
            part = shares[n * _AT_ONCE : (n + 1) * _AT_ONCE]
            own = jnp.asarray(np.resize(part, (_AT_ONCE, *shares.shape[1:])))
        found.append(np.asarray(_some(attack, some, own, *known)))
    return np.concatenate(found)[:runs]


@eqx.filter_jit
def _some(
    attack: _Attack, keys: Array, shares: Array | None, takes_part: Flag, dropout: Scalar
) -> Float[Array, " runs"]:
    return jax.vmap(lambda key, own: _ratio(attack, key, own, takes_part, dropout))(keys, shares)


def _ratio(
    attack: _Attack,
    key: Key,
    shares: UInt32[Array, "rounds numbers"] | None,
    takes_part: Flag,
    dropout: Scalar,
) -> Scalar:
    """The statistic of a run."""
    begin_key, key = jr.split(key)
    nothing = lambda round: ()  # noqa: E731
    begin = Plan(
        attack.algorithm,
        attack.objective,
        None,
        nothing,
        jax.vmap,
        0,
        attack.initial,
        1,
        "maximize",
    )
    state, _ = _run(begin, begin_key, attack.start)
    keys = run_keys(key)

    def step(carry: Carry, row: tuple[Count, Array | None]) -> tuple[Carry, None]:
        t, own = row
        here_key, ask_key, noise_key = jr.split(round_keys(keys, t).ask, 3)
        state, ratio = carry
        algorithm = attack.algorithm
        present = jr.bernoulli(here_key, 1 - dropout, (algorithm.agents,))
        present = present.at[attack.victim].set(takes_part | _always(algorithm.mechanism))
        state, more = _round(attack, state, ask_key, noise_key, present, takes_part, own)
        return (state, ratio + more), None

    carry = state, jnp.zeros((), jnp.zeros(()).dtype)
    return jax.lax.scan(step, carry, (jnp.arange(attack.rounds), shares))[0][1]


def _always(mechanism: Mechanism) -> bool:
    """Whether the owner sends something in both worlds."""
    return mechanism.sampling.relation is Relation.REPLACE


def _round(
    attack: _Attack,
    state: FederatedState,
    ask_key: Key,
    noise_key: Key,
    present: Bool[Array, " agents"],
    takes_part: Flag,
    shares: UInt32[Array, " numbers"] | None,
) -> tuple[FederatedState, Scalar]:
    """A round as in `ask` and `tell`, with the worst message of the owner, and its log ratio."""
    algorithm, keys, round = attack.algorithm, ask_keys(ask_key), state.round
    messages = algorithm.messages(keys.message, state)
    sign = jnp.where(takes_part, 1.0, -1.0)
    messages = _with_worst(attack, messages, sign)
    told = keys.server, state, messages, present
    if attack.secure is None or shares is None:
        broadcast, rest, due = _of_server(attack, *told)
    else:
        broadcast, rest, due = _of_owners(attack, attack.secure, *told, takes_part, shares)
    queries, info = algorithm.respond(keys.choice, state, messages, broadcast)
    values = evaluate_all(algorithm.domain, attack.objective, noise_key, queries)
    following = algorithm.tell(state, queries, values, info=info)

    honest, known = _honest(algorithm.mechanism), algorithm.weights(round)
    clipped = _clipped(honest, algorithm.vectors(messages), known.shape[0])
    added = sign * jnp.outer(known[:, attack.victim], clipped[attack.victim]) / honest.sampling.q
    ratio = log_ratio(honest, rest, added, honest.deviation(known))
    return following, jnp.where(due & algorithm.releasing(round), ratio, 0)


def _of_server(
    attack: _Attack,
    key: Key,
    state: FederatedState,
    messages: PyTree,
    present: Bool[Array, " agents"],
) -> tuple[PyTree, Array, Flag]:
    """The broadcast, its release without the part of the others, and whether there is one."""
    algorithm, round = attack.algorithm, state.round
    secret = release_keys(wrap(unwrap(key), key)).secret  # to look again at what `release` draws
    release = algorithm.release(key, round, messages, present)
    broadcast = algorithm.broadcast(release.public, state.shared, round, release.sums)

    honest, known = _honest(algorithm.mechanism), algorithm.weights(round)
    clipped = _clipped(honest, algorithm.vectors(messages), known.shape[0])
    q = honest.sampling.q
    if _always(honest):
        drawn = present.astype(known.dtype) * q
    else:
        included = algorithm.mechanism.included(secret, algorithm.vectors(messages), present)
        drawn = included.astype(known.dtype)
    drawn = drawn.at[attack.victim].set(0)
    others = dot(known * drawn[None, :], clipped) / q
    return broadcast, release.sums - others, jnp.asarray(True)


def _of_owners(
    attack: _Attack,
    secure: SecureSum,
    key: Key,
    state: FederatedState,
    messages: PyTree,
    present: Bool[Array, " agents"],
    takes_part: Flag,
    shares: UInt32[Array, " numbers"],
) -> tuple[PyTree, Array, Flag]:
    """The same of a secure sum."""
    algorithm, round = attack.algorithm, state.round
    keys = release_keys(key)
    here = _in_shares.named(secure, present, attack.victim)
    sums, rest = _in_shares.opened(
        algorithm, attack.victim, keys.secret, round, messages, here, takes_part, shares
    )
    told = _in_shares.louder(algorithm, secure, here)
    return told.broadcast(keys.public, state.shared, round, sums), rest, jnp.any(here)


def _with_worst(attack: _Attack, messages: PyTree, sign: Scalar) -> PyTree:
    """The messages, with equal numbers in the owner's place, longer than allowed."""
    algorithm = attack.algorithm
    numbers, rest = eqx.partition(messages, eqx.is_inexact_array)
    ones = jax.tree.map(lambda a: jnp.ones(a.shape[1:], a.dtype), numbers)
    kept = jax.tree.map(lambda a: a[attack.victim], rest)
    unit = jnp.linalg.norm(algorithm.vector(eqx.combine(ones, kept)))
    size = sign * _LONGER * algorithm.mechanism.S / unit
    worst = jax.tree.map(lambda a: a.at[attack.victim].set(size.astype(a.dtype)), numbers)
    return eqx.combine(worst, rest)


def _honest(mechanism: Mechanism) -> Mechanism:
    """The mechanism that is claimed, whatever a subclass makes of it."""
    return Mechanism(mechanism.z, mechanism.S, mechanism.sampling, mechanism.exact)


def _clipped(
    mechanism: Mechanism, vectors: Float[Array, "agents released"], regions: int
) -> Float[Array, "agents released"]:
    longest = mechanism.S / regions**0.5
    finite = jnp.where(jnp.isfinite(vectors), vectors, 0)

    def one(vector: Features) -> Features:
        return clip(vector, longest.astype(vector.dtype))

    return jax.vmap(one)(finite)
