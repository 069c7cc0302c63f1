"""A private sum whose noise the owners add, in shares, so that a server need not see any message.

    c_n = (φ_in clip(v_n) / q)_i            the vector that agent n adds in all regions, |c_n| ≤ Δ
    x_n = round(u c_n / Δ),   u = 2^15      whole numbers, |x_n| ≤ Δ_u
    y_n = x_n + N_Z(0, σ²),   σ² = ((z Δ_u)² + 4) / (threshold - colluding)
    sum = Δ / u · (Σ_n y_n mod 2^32)        with 2^32 - 1 read as -1

`privacy.mechanism` has φ, clip, Δ, z and q. N_Z is the discrete Gaussian (Canonne, Kamath and Steinke,
2020), and the whole is the distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke, 2021). Sums
modulo 2^32 are what masks need: a number plus a uniform one is uniform, and says nothing.

Rounding. Each number goes up or down at random, so that its mean nearly stays. The
vector is drawn again until

    |x_n|² ≤ Δ_u² = min(u² + D/4 + u + √D/2, (u + √D)²)

for D numbers, which is tested in whole numbers. At least 39 % of the draws pass (Kairouz et al., with β =
e^(-1/2)). So no rounding of floats breaks the bound. u is so large that nothing is lost: for D = 400, Δ_u
is 1.00002 u. A rotation of the vectors, which makes their largest numbers smaller, is not needed: a
number has 32 bits, and `check` computes that the sum of all owners fits into them.

Shares. The sum is opened only if at least `threshold` owners are in it, and of these at most `colluding`
tell others their noise. So the noise that nobody knows has at least the variance (z Δ_u)² + 4. If more
owners answer there is more noise than was charged: `excess` says by which factor.

Lies. This needs a server that names the same owners to all when it opens a sum. A server that lies can
open a sum of fewer honest owners. Let h = agents - colluding of them be in the lists on which all agree,
and let t be threshold - colluding. Each honest owner gives shares for at least `threshold` owners, t of
them honest. An owner stays out of the sum only if t honest owners named it as missing, so that h - t
others may have named it. If k owners are in the sum,

    h t ≤ h k + (h - k) (h - t),    thus    k ≥ h (2 t - h) / t

which is above 0 because 2 t > h, as `check` requires. Fewer owners who collude, in the lists or among
those who help, give a larger bound. `SecureSum.fewest` is this k. The variance of the noise that nobody
knows is then k / t of the one above: z is smaller by √(k / t).

Accounting. Let Y = x + N(0, σ² - 4), the Gaussian mechanism with z Δ_u, and let X be Y rounded to a whole
number k with probability proportional to exp(-(k - Y)² / 8). Then X is N_Z(x, σ²) up to a factor of 1 ±
10^-33 for each number, because

    Σ_k exp(-(k - y)² / 8) = √(8π) (1 ± 2.1 e^(-8π²))      for each y (Poisson's sum; e^(-8π²) = 5e-35)

and the integral over Y of the two densities is a Gaussian's (Peikert, 2010). A sum of shares N_Z(0, σ²)
is such a variable, too, up to a factor of 1 ± 10 n e^(-π² σ²) for n owners (Kairouz et al.), which is
below 10^-59 because a share's σ is at least 4. So the sum follows from the release that `Mechanism` makes
with the same z. All accountants of `privacy.accounting` hold for it, sampled or not: a ledger charges the
same.

Sampling. Each owner draws itself, with probability q, and adds noise alone if it is not drawn. Nobody
else knows, not even the server, so that q counts against all. `FixedSize` cannot be drawn like this.

Neighbors. Other owners and the server know who takes part. So what is hidden is not whether an agent
takes part but what it adds: in the neighboring run its vector is 0 (`Relation.ZERO_OUT`).
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int32, UInt32

from jaxbo._check import is_a, require, whole
from jaxbo.privacy.mechanism import Mechanism, Poisson, clip
from jaxbo.types import Features, Key, Scalar

#: u. Squares of norms are below 2^31 for up to 10^8 numbers: they are tested exactly.
UNIT = 2**15
#: Relative, far above what float64 rounds away.
_MARGIN = 1e-12
Number = TypeVar("Number", float, Scalar)
#: The variance by which a rounded Gaussian has more than the Gaussian.
_ROUNDING = 4.0
#: The least deviation of a share: a sum of such shares is a discrete Gaussian.
_LEAST = 4.0
#: A sum has this many bits, and noise of so many deviations fits into them.
BITS, _DEVIATIONS = 32, 40.0


@dataclasses.dataclass(frozen=True)
class SecureSum:
    """Sums in the place of messages: owners mask what they send, and add the noise in shares.

    It is for `DPFTSDE`, `DPLearnedPrior` and other methods of `AbstractPrivate` with `Poisson` sampling:
    what they broadcast follows from a sum. Owners and the server have the same `SecureSum`. It needs the
    extra `secure`. The docstring of `jaxbo.privacy.distributed` has the mathematics, and the page on
    privacy says what is promised to whom.

    The server sees no message if it passes on the owners' keys as they came, or if all owners have a
    directory of their identities. Without a directory, a server that lies about keys reads messages. ε
    is as charged if the server also names the same owners to all when it opens a sum. Else see `fewest`.

    Args:
        threshold: The fewest owners of whom a sum is opened. With fewer, the round ends without a sum.
            It is more than (owners + `colluding`) / 2, so that a server cannot ask some for one kind of
            shares and the rest for the other.
        colluding: How many owners may pool all they know, with each other and with the server. An
            owner knows its own noise: with 0 the promise is against the server alone. Each one more
            costs noise, √(1 / (threshold - colluding)) in deviation. Default: 1.

    Raises:
        ValueError: The numbers are no whole numbers, or `threshold` is not above `colluding`.

    Example:
        >>> import jaxbo.federation
        >>> secure = jaxbo.federation.SecureSum(threshold=15)
        >>> round(secure.excess(heard=20), 3)  # the noise of 20 owners, over the noise that is charged
        1.195
    """

    threshold: int
    colluding: int = 1

    def __post_init__(self):
        whole("threshold", self.threshold, least=1)
        whole("colluding", self.colluding)
        require(
            self.colluding < self.threshold,
            f"threshold must be above colluding, got {self.threshold} and {self.colluding}: the others "
            "add the noise.",
        )

    def excess(self, heard: int) -> float:
        """Says by which factor the deviation of a sum's noise is above the one that is charged.

        Args:
            heard: Number of owners in the sum, at least `threshold`.

        Returns:
            √(`heard` / (`threshold` - `colluding`)).
        """
        return math.sqrt(heard / (self.threshold - self.colluding))

    def fewest(self, agents: int) -> int:
        """Counts the owners whose noise is in a sum, if the server lies about who is in it.

        A server may name different owners to different owners when it opens a sum. The owners who do
        not collude then add at least this many shares. Their noise is that of
        z √(`fewest` / (`threshold` - `colluding`)).

        Args:
            agents: Number of owners.

        Returns:
            The fewest of them, at least 1 for settings that `check` accepts.

        Example:
            >>> import jaxbo.federation
            >>> jaxbo.federation.SecureSum(threshold=14, colluding=2).fewest(agents=20)
            9
        """
        honest, needed = agents - self.colluding, self.threshold - self.colluding
        return -(-honest * (2 * needed - honest) // needed)  # rounded up

    def variance(self, z: Number, size: int) -> Number:
        """Gives σ², the parameter of an owner's noise, in squared units of the grid.

        Args:
            z: Standard deviation of the noise over the sensitivity.
            size: Numbers in the sum.

        Returns:
            σ², which is nearly the variance.
        """
        return (z**2 * squared_bound(size) + _ROUNDING) / (self.threshold - self.colluding)

    def share(self, z: float, size: int) -> float:
        """Gives σ, by a margin more, so that what float64 rounds away never is noise.

        Args:
            z: Standard deviation of the noise over the sensitivity.
            size: Numbers in the sum.

        Returns:
            σ, which is nearly the standard deviation of an owner's noise.
        """
        return math.sqrt(self.variance(z, size)) * (1 + _MARGIN)

    def check(self, mechanism: Mechanism, agents: int, size: int) -> None:
        """Checks that owners can add the noise of a mechanism, and that their sum fits into its bits.

        Args:
            mechanism: The mechanism.
            agents: Number of owners.
            size: Numbers in the sum.

        Raises:
            ValueError: They cannot, or it does not.
        """
        is_a("mechanism", mechanism, Mechanism)
        require(
            isinstance(mechanism.sampling, Poisson),
            "owners of a secure sum draw themselves, one without the others: give the mechanism "
            f"Poisson(q), not {type(mechanism.sampling).__name__}.",
        )
        require(
            2 * self.threshold > agents + self.colluding and self.threshold <= agents,
            f"threshold must be above ({agents} owners + {self.colluding} colluding) / 2, and at most "
            f"{agents}, got {self.threshold}: else a server could open one owner's message.",
        )
        z = float(np.asarray(mechanism.z))
        require(z > 0, "z must be positive: without noise a sum tells what is in it.")
        share = self.share(z, size)
        require(
            share >= _LEAST,
            f"z is too small for so many owners, got {z}: a share of the noise is {share:.2g} units, and "
            f"needs {_LEAST:.0f}.",
        )
        most = agents * math.sqrt(squared_bound(size)) + _DEVIATIONS * math.sqrt(agents) * share
        require(
            most < 2 ** (BITS - 1),
            f"a sum of {agents} owners with z {z} does not fit into {BITS} bits: ask for less noise.",
        )


def squared_bound(size: int) -> int:
    """The largest |x|² of a rounded vector of `size` numbers, Δ_u².

    Args:
        size: Numbers of the vector.

    Returns:
        The bound, a whole number.

    Example:
        >>> from jaxbo.privacy import distributed
        >>> round((distributed.squared_bound(400) ** 0.5 / distributed.UNIT), 6)
        1.000015
    """
    near = UNIT**2 + size / 4 + UNIT + math.sqrt(size) / 2
    return math.floor(min(near, (UNIT + math.sqrt(size)) ** 2))


def rounded(key: Key, vector: Features, sensitivity: Scalar) -> Int32[Array, " features"]:
    """Rounds a vector to the grid at random, within `squared_bound`; 0 for one that is not finite.

    Args:
        key: Random key.
        vector: The vector. It is clipped to the norm `sensitivity`.
        sensitivity: Δ.

    Returns:
        Whole numbers, in units of Δ / u.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxbo.privacy import distributed
        >>> distributed.rounded(jax.random.key(0), jnp.array([0.5, -0.25]), jnp.array(1.0)).tolist()
        [16384, -8192]
    """
    finite = jnp.where(jnp.all(jnp.isfinite(vector)), vector, 0)
    scaled = clip(finite, sensitivity) * (UNIT / sensitivity)  # or no draw would ever pass
    below, most = jnp.floor(scaled), squared_bound(vector.size)

    def drawn(key: Key) -> Int32[Array, " features"]:
        up = jr.uniform(key, scaled.shape, scaled.dtype) < scaled - below
        return below.astype(jnp.int32) + up.astype(jnp.int32)

    def again(
        state: tuple[Key, Int32[Array, " features"]],
    ) -> tuple[Key, Int32[Array, " features"]]:
        key, draw_key = jr.split(state[0])
        return key, drawn(draw_key)

    def outside(state: tuple[Key, Int32[Array, " features"]]) -> Array:
        return jnp.sum(state[1] ** 2) > most

    return jax.lax.while_loop(outside, again, again((key, jnp.zeros(vector.shape, jnp.int32))))[1]


def noise(deviation: float, size: int) -> UInt32[np.ndarray, " features"]:
    """Draws discrete Gaussian numbers, exactly and from the operating system's randomness.

    Args:
        deviation: σ, as `SecureSum.share` gives it.
        size: How many numbers.

    Returns:
        Whole numbers modulo 2^32, new in each call.

    Raises:
        ImportError: The extra `secure` is missing.

    Example:
        >>> from jaxbo.privacy import distributed
        >>> distributed.noise(5.0, size=3).dtype
        dtype('uint32')
    """
    check_extra()
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i32")), l2_distance(T="f64")
    drawn = make_gaussian(*space, scale=deviation)([0] * size)
    return np.asarray(drawn, np.int64).astype(np.uint32)


def check_extra() -> None:
    """Checks that there is a sampler of noise.

    Raises:
        ImportError: The extra `secure` is missing.

    Example:
        >>> from jaxbo.privacy import distributed
        >>> distributed.check_extra()
    """
    with importing():
        import opendp.measurements  # noqa: F401


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Imports in this block say what to install if a package of the extra `secure` is missing.

    Raises:
        ImportError: The extra `secure` is missing.
    """
    try:
        yield
    except ImportError as error:
        said = f'secure sums need {error.name}: pip install "jaxbo-agents[secure]".'
        raise ImportError(said) from error


def decoded(total: UInt32[Array, " features"], sensitivity: Scalar) -> Float[Array, " features"]:
    """Reads a sum modulo 2^32 as numbers.

    Args:
        total: The sum.
        sensitivity: Δ.

    Returns:
        The sum of the vectors, with its noise.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxbo.privacy import distributed
        >>> total = jnp.array([16384, 2**32 - 8192], jnp.uint32)
        >>> distributed.decoded(total, jnp.array(1.0)).tolist()
        [0.5, -0.25]
    """
    signed = jax.lax.bitcast_convert_type(total, jnp.int32)
    return signed.astype(sensitivity.dtype) * (sensitivity / UNIT)
