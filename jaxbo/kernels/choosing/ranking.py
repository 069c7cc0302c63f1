"""How well another agent's model puts an agent's own observations in order, and the uses of that.

    misranked(s, y) = #{j < k: y_j ≠ y_k, s orders j and k otherwise}
    share           = misranked / #{j < k: y_j ≠ y_k}                  (1 - Kendall's τ) / 2

Orders need no common scale of values: agents may standardize theirs alone.

    RGPE    w_n = share of draws in which model n misranks least
    TAF     w_n = ¾ (1 - (share_n / bandwidth)²)₊
    FTS     P_N by the evidence that the ranks of peer n are no chance: `Ranked`
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbo._check import require
from jaxbo._shown import Shown
from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Scalar, named

#: A peer is dropped whose median loss is above this quantile of the agent's own: RGPE's rule.
DILUTION = 0.95
#: Draws of the prior that tell how far ranks are from even by chance.
STRANGERS = 64
_LEAST_VARIANCE = 1e-4
#: Of expectation maximization for the share of related peers.
_STEPS = 30


def pairs(y: Float[Array, " points"], used: Bool[Array, " points"]) -> Bool[Array, "points points"]:
    """Which pairs j < k have an order: both observed, of unlike values."""
    upper = jnp.arange(y.size)[:, None] < jnp.arange(y.size)[None, :]
    return upper & used[:, None] & used[None, :] & (y[:, None] != y[None, :])


def misranked(
    scores: Float[Array, " points"], y: Float[Array, " points"], used: Bool[Array, " points"]
) -> Scalar:
    """How many pairs of observations `scores` puts in another order than `y`; a tie is another order."""

    # One point after the other, so that many scores at once take O(points) memory each.
    def add(wrong: Scalar, j: Count) -> tuple[Scalar, None]:
        same = jnp.sign(scores[j] - scores) == jnp.sign(y[j] - y)
        later = used[j] & used & (y[j] != y) & (jnp.arange(y.size) > j)
        return wrong + jnp.sum(later & ~same, dtype=wrong.dtype), None

    return jax.lax.scan(add, jnp.zeros((), scores.dtype), jnp.arange(y.size))[0]


def misranked_left_out(
    scores: Float[Array, " points"], y: Float[Array, " points"], used: Bool[Array, " points"]
) -> Scalar:
    """`misranked` if `scores[j]` predicts point j from all others: against the values of the others.

    Every pair counts half as seen from either of its points.
    """

    def add(wrong: Scalar, j: Count) -> tuple[Scalar, None]:
        missed = used[j] & used & (y[j] != y) & ((scores[j] > y) != (y[j] > y))
        return wrong + jnp.sum(missed, dtype=wrong.dtype) / 2, None

    return jax.lax.scan(add, jnp.zeros((), scores.dtype), jnp.arange(y.size))[0]


def ensemble_weights(
    peers: Float[Array, "draws peers"], own: Float[Array, " draws"], present: Bool[Array, " peers"]
) -> tuple[Float[Array, " peers"], Scalar]:
    """RGPE's weights of the peers and of the agent's own model, from the losses of draws; sum 1.

    A draw goes to the model that misranks least. If the own model is among the best it goes to the
    own model, else in equal parts to all of them. Against dilution by many bad models, a peer is
    dropped whose median loss exceeds the 95 % quantile of the own losses, and a peer that is not
    `present` takes part in nothing.
    """
    # One peer after the other: sorted copies of all losses are more than there is room for.
    medians = jax.lax.map(jnp.median, peers.T)
    kept = present & (medians <= jnp.quantile(own, DILUTION))
    losses = jnp.where(kept[None, :], peers, jnp.inf)
    least = jnp.minimum(jnp.min(losses, axis=1, initial=jnp.inf), own)
    is_own = own <= least
    best = (losses <= least[:, None]) & kept[None, :] & ~is_own[:, None]
    best = best.astype(own.dtype)
    parts = best / jnp.maximum(jnp.sum(best, axis=1, keepdims=True), 1)
    return jnp.mean(parts, axis=0), jnp.mean(is_own.astype(own.dtype))


def epanechnikov(distance: Scalar) -> Scalar:
    """¾ (1 - distance²) up to a distance of 1, then 0."""
    return 0.75 * jnp.maximum(1 - distance**2, 0)


def leave_one_out(
    root: Float[Array, "points points"],
    y: Float[Array, " points"],
    noise: Scalar,
    used: Bool[Array, " points"],
) -> tuple[Float[Array, " points"], Float[Array, " points"]]:
    """Mean and variance of f at each point of an exact process, from all points but itself.

        K⁻¹ = root' root,   mean_j = y_j - (K⁻¹y)_j / (K⁻¹)_jj,   variance_j = 1 / (K⁻¹)_jj - noise

    with the noise in K (Rasmussen and Williams, 2006, eq. 5.12). Rows not in use are 0, with
    variance 0.
    """
    y = jnp.where(used, y, 0)
    precision = jnp.sum(root**2, axis=0)
    mean = y - dot(dot(root, y), root) / precision
    variance = jnp.maximum(1 / precision - noise, 0)
    return jnp.where(used, mean, 0), jnp.where(used, variance, 0)


# ------------------------------------------------------------------------- whom FTS listens to


def check_weights(name: str, weights: Float[Array, "*shape"]) -> None:
    """`ValueError` unless all could be probabilities up to scale."""
    require((weights >= 0) & jnp.isfinite(weights), f"{name} must be at least 0, got {weights}.")


class Ranked(Shown):
    """Learns whom to listen to: peers whose messages put an agent's own observations in order.

        τ_n = 1 - 2 share_n,   sd² = mean τ² of strangers
        r_n = N(τ_n | effect, sd²) / N(τ_n | 0, sd²)
        P_n = π r_n / (π r_n + 1 - π),   π the share of related peers, as is likeliest under a Beta(2, 2)

    Strangers are draws of the prior on the messages' features, as smooth as messages are. The
    smoother they are, the further τ is from 0 by chance.

    A peer is drawn with a probability proportional to P_n, and listened to with probability min(1,
    2 P_n). Otherwise the own sample is maximized. Before there is a pair to order, all P_n are 1/2,
    which is the uniform P_N. They part with the evidence. If most peers are strangers π falls, and
    few are taken for related by chance. All scores are a single matrix product, and no more is
    sent.

    Args:
        effect: The τ that is expected of related peers, in (0, 1]. Default: 0.3.
        start: P_N up to scale before there is evidence, in the shapes that `FTS` takes. A peer is
            then drawn in proportion to start_n P_n, and a peer of weight 0 never. Here, too, P_n
            are 1/2 at first. None: uniform.

    Raises:
        ValueError: `effect` is outside of (0, 1], or weights are negative or not finite.

    Example:
        >>> import jaxbo
        >>> own = jaxbo.Fitted(20)
        >>> method = jaxbo.FTS(jaxbo.Cube(2), agents=5, own=own, peers=jaxbo.Ranked(effect=0.5))
        >>> float(method.peers.effect)
        0.5
    """

    effect: Scalar = eqx.field(converter=named("effect"), default=0.3)
    start: Float[Array, " agents"] | Float[Array, "targets agents"] | None = eqx.field(
        converter=lambda weights: None if weights is None else named("start")(weights), default=None
    )

    def __check_init__(self):
        require(self.effect.ndim == 0, f"effect must be one number, got shape {self.effect.shape}.")
        require(
            (self.effect > 0) & (self.effect <= 1), f"effect must be in (0, 1], got {self.effect}."
        )
        if self.start is not None:
            check_weights("start", self.start)

    def probabilities(
        self,
        scores: Float[Array, "peers points"],
        strangers: Float[Array, "draws points"],
        y: Float[Array, " points"],
        used: Bool[Array, " points"],
        others: Bool[Array, " peers"],
    ) -> Float[Array, " peers"]:
        """Computes P_n of each peer.

        Args:
            scores: The values of each peer's function at the agent's observations.
            strangers: The values of draws of the prior there.
            y: The agent's own values.
            used: Whether each row holds an observation.
            others: Whether each peer is another agent who may be drawn.

        Returns:
            The probabilities; 0 but for `others`.
        """
        effect = self.effect.astype(y.dtype)
        count = jnp.sum(pairs(y, used), dtype=y.dtype)

        def taus(scores: Float[Array, "many points"]) -> Float[Array, " many"]:
            wrong = jax.vmap(lambda s: misranked(s, y, used))(scores)
            return jnp.where(count > 0, 1 - 2 * wrong / jnp.maximum(count, 1), effect / 2)

        variance = jnp.maximum(jnp.mean(taus(strangers) ** 2), _LEAST_VARIANCE)
        log_ratio = (effect * taus(scores) - effect**2 / 2) / variance
        among = others.astype(y.dtype)

        def posterior(share: Scalar) -> Float[Array, " peers"]:
            return jax.nn.sigmoid(log_ratio + jnp.log(share) - jnp.log1p(-share)) * among

        def step(_: Count, share: Scalar) -> Scalar:
            # Expectation maximization.
            return (jnp.sum(posterior(share)) + 1) / (jnp.sum(among) + 2)

        return posterior(jax.lax.fori_loop(0, _STEPS, step, jnp.full_like(effect, 0.5)))
