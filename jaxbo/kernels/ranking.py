"""How well another agent's model puts an agent's own observations in order, and what follows from it.

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
from jaxbo.kernels.linalg import dot
from jaxbo.types import Count, Scalar, floating

#: A peer is dropped whose median loss is above this quantile of the agent's own: RGPE's rule.
DILUTION = 0.95
#: Of expectation maximization for the share of related peers, and the least there is.
_STEPS, _LEAST_SHARE = 30, 1e-4


def pairs(y: Float[Array, " points"], used: Bool[Array, " points"]) -> Bool[Array, "points points"]:
    """Which pairs j < k have an order: both observed, of unlike values."""
    upper = jnp.arange(y.size)[:, None] < jnp.arange(y.size)[None, :]
    return upper & used[:, None] & used[None, :] & (y[:, None] != y[None, :])


def misranked(
    scores: Float[Array, " points"], y: Float[Array, " points"], used: Bool[Array, " points"]
) -> Scalar:
    """How many pairs of observations `scores` puts in another order than `y`; a tie is one."""
    same = jnp.sign(scores[:, None] - scores[None, :]) == jnp.sign(y[:, None] - y[None, :])
    return jnp.sum(pairs(y, used) & ~same, dtype=scores.dtype)


def misranked_left_out(
    scores: Float[Array, " points"], y: Float[Array, " points"], used: Bool[Array, " points"]
) -> Scalar:
    """`misranked` where `scores[j]` predicts point j from all others: against the values of these.

    Every pair counts half as seen from either of its points.
    """
    higher = scores[:, None] > y[None, :]
    wrong = higher != (y[:, None] > y[None, :])
    both = pairs(y, used)
    return jnp.sum((both | both.T) & wrong, dtype=scores.dtype) / 2


def ensemble_weights(
    peers: Float[Array, "draws peers"], own: Float[Array, " draws"], present: Bool[Array, " peers"]
) -> tuple[Float[Array, " peers"], Scalar]:
    """RGPE's weights of the peers and of the agent's own model, from the losses of draws; sum 1.

    A draw goes to the model that misranks least, where the own one is among them to it, else in equal
    parts. Against dilution by many bad models, a peer is dropped whose median loss exceeds the 95 %
    quantile of the own losses, and a peer that is not `present` takes part in nothing.
    """
    kept = present & (jnp.median(peers, axis=0) <= jnp.quantile(own, DILUTION))
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
    """Mean and variance of f at each point of an exact process, from all points but that one.

        K⁻¹ = root' root,   mean_j = y_j - (K⁻¹y)_j / (K⁻¹)_jj,   variance_j = 1 / (K⁻¹)_jj - noise

    with the noise in K (Rasmussen and Williams, 2006, eq. 5.12). Rows not in use are 0, with variance 0.
    """
    y = jnp.where(used, y, 0)
    precision = jnp.sum(root**2, axis=0)
    mean = y - dot(dot(root, y), root) / precision
    variance = jnp.maximum(1 / precision - noise, 0)
    return jnp.where(used, mean, 0), jnp.where(used, variance, 0)


# ------------------------------------------------------------------------- whom FTS listens to


class Ranked(eqx.Module):
    """Whom to listen to, learned: peers whose messages put an agent's own observations in order.

        z_n = τ_n / sd,   τ_n = 1 - 2 share_n,   sd² = 2 (2t + 5) / (9 t (t - 1))   after t observations
        r_n = N(z_n | μ, 1) / N(z_n | 0, 1) = exp(z_n μ - μ² / 2),   μ = effect / sd
        P_n = π r_n / (π r_n + 1 - π),   π the most likely share of related peers

    Where ranks are chance z_n is about normal (Kendall, 1938), and about μ higher where a peer is related
    by τ = `effect`. A peer is drawn with a probability proportional to P_n and listened to with
    probability min(1, 2 P_n); else the own sample is maximized. All P_n are 1/2 at first, which is the
    uniform P_N, and part as √t. However many peers there are, few are taken for related by chance, since
    π falls where most are not. All scores are one matrix product; nothing more is sent.

    `ValueError` for an effect outside (0, 1].
    """

    effect: Scalar = eqx.field(converter=floating, default=0.3)

    def __check_init__(self):
        require(
            (self.effect > 0) & (self.effect <= 1), f"effect must be in (0, 1], got {self.effect}."
        )

    def probabilities(
        self,
        scores: Float[Array, "peers points"],
        y: Float[Array, " points"],
        used: Bool[Array, " points"],
        others: Bool[Array, " peers"],
    ) -> Float[Array, " peers"]:
        """P_n of each peer, from its values at the agent's observations; 0 but for `others`."""
        effect = self.effect.astype(y.dtype)
        wrong = jax.vmap(lambda s: misranked(s, y, used))(scores)
        count = jnp.sum(pairs(y, used), dtype=y.dtype)
        t = jnp.maximum(jnp.sum(used, dtype=y.dtype), 2)
        variance = 2 * (2 * t + 5) / (9 * t * (t - 1))
        tau = jnp.where(count > 0, 1 - 2 * wrong / jnp.maximum(count, 1), effect / 2)
        log_ratio = (effect * tau - effect**2 / 2) / variance
        among = others.astype(y.dtype)

        def posterior(share: Scalar) -> Float[Array, " peers"]:
            return jax.nn.sigmoid(log_ratio + jnp.log(share) - jnp.log1p(-share)) * among

        def step(_: Count, share: Scalar) -> Scalar:
            # Expectation maximization. A share of 0 or 1 is never left again, and has no odds.
            mean = jnp.sum(posterior(share)) / jnp.maximum(jnp.sum(among), 1)
            return jnp.clip(mean, _LEAST_SHARE, 1 - _LEAST_SHARE)

        return posterior(jax.lax.fori_loop(0, _STEPS, step, jnp.full_like(effect, 0.5)))
