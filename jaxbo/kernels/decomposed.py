"""A model that is a sum of functions of a few variables each, with what it says of each on a grid.

    f(x) = Σ_I f_I(x_I)    →    mean_I and variance_I on the grid of I, for every I

The tables are brought up to every observation as it comes, and made anew when hyperparameters or the
structure are. Whatever needs f alone goes to `Fitted`, which does the observing, the warping and the
fitting: one for each chain of structures, all given the same observations.
"""

from collections.abc import Sequence
from typing import SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from jaxbo._check import whole
from jaxbo.kernels import additive, fit
from jaxbo.kernels.additive import AdditiveKernel, GridTables
from jaxbo.kernels.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.ensemble import mixed
from jaxbo.kernels.features import SineCosine
from jaxbo.kernels.fit import Priors
from jaxbo.kernels.fitted import Exact, Fitted, FittedBelief
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.structure import AbstractStructure, Given, Scopes
from jaxbo.kernels.surrogate import AbstractSurrogate
from jaxbo.types import Count, Function, Key, Point, Scalar, floating

#: Features a factor of a sampled function.
SIZE = 100


class Shared(eqx.Module):
    """What the first structure is drawn with, and every later one."""

    key: Key
    none: SineCosine


class Belief(eqx.Module):
    """What is believed of f, and of every factor on its grid; both with an axis of chains.

    `accepted` is the share of structural moves that were taken at the last fit.
    """

    whole: FittedBelief
    tables: GridTables
    accepted: Scalar | Float[Array, " chains"]

    def incumbent(self) -> Point:
        """The best point observed; the origin before there is one."""
        y = self.whole.y[0]
        return self.whole.x[0, jnp.argmax(jnp.where(jnp.isfinite(y), y, -jnp.inf))]


class Decomposed(AbstractSurrogate):
    """An additive process whose hyperparameters are fitted by maximum evidence every `every` evaluations.

    `structure` says which variables share a factor: scopes, or `RandomTree()`, or `Sampled()`, which
    learns it. `form` is the kernel of every factor and where fitting starts, `grid` the number of points
    along each coordinate, `per_factor` whether every factor has a variance and length scales of its own;
    else factors share the variance evenly, and one length scale or, where `form` has them, one for each
    coordinate. `noise`, `warp` and
    `priors` are those of `Fitted`.

    Memory: (3 + observations²) numbers a chain, and 3 grid^arity a factor.
    """

    structure: AbstractStructure
    capacity: int = eqx.field(static=True)
    form: AbstractKernel
    noise: Scalar
    every: int | None = eqx.field(static=True)
    warp: bool = eqx.field(static=True)
    grid: int = eqx.field(static=True)
    per_factor: bool = eqx.field(static=True)
    priors: Priors | None

    def __init__(
        self,
        structure: AbstractStructure | Sequence[Sequence[SupportsIndex]],
        capacity: int,
        *,
        form: AbstractKernel | None = None,
        noise: Scalar | float = 1e-3,
        every: int | None = 10,
        warp: bool = False,
        grid: int = 32,
        per_factor: bool = False,
        priors: Priors | None = None,
    ):
        given = isinstance(structure, AbstractStructure)
        self.structure = structure if given else Given(structure)
        self.capacity = capacity
        self.form = SquaredExponential(0.3) if form is None else form
        self.noise = floating(noise)
        self.every, self.warp, self.grid, self.per_factor = every, warp, grid, per_factor
        self.priors = priors

    def __check_init__(self):
        whole("grid", self.grid, least=2)
        self._model(1)  # which checks the rest

    def _model(self, dim: int) -> Fitted:
        return Fitted(
            self.capacity,
            self.form,
            noise=self.noise,
            every=self.every,
            inference=Exact(),
            warp=self.warp,
            priors=self.priors,
        )

    @property
    def room(self) -> int:
        return self.capacity

    @property
    def period(self) -> int | None:
        return self.every

    def setup(self, key: Key, dim: int) -> Shared:
        # The exact process of `Fitted` needs no features; those of samples are drawn with them.
        return Shared(key, SineCosine(jnp.zeros((0, dim)), jnp.ones(()), jnp.ones(())))

    def points(self, dim: int) -> Float[Array, "variables grid"]:
        """The grid of every coordinate."""
        return jnp.broadcast_to(jnp.linspace(0, 1, self.grid), (dim, self.grid))

    def start(self, shared: Shared) -> Belief:
        dim = shared.none.frequencies.shape[1]

        def one(key: Key) -> Belief:
            kernel = self._kernel(self.structure.start(key, dim))
            belief = self._model(dim).start(shared.none)
            belief = eqx.tree_at(lambda b: b.kernel, belief, kernel)
            return Belief(belief, self._tables(belief), jnp.zeros(()))

        return jax.vmap(one)(jr.split(shared.key, self.structure.chains))

    def _kernel(self, scopes: Scopes) -> AdditiveKernel:
        form = self.form
        if not self.per_factor:
            return AdditiveKernel(scopes, form)
        scales = jnp.broadcast_to(form.length_scale, scopes.shape)
        variances = jnp.broadcast_to(form.variance / len(scopes), scopes.shape[:1])
        return AdditiveKernel(scopes, form, scales, variances)

    def condition(self, shared: Shared, belief: Belief, x: Point, y: Scalar) -> Belief:
        points = self.points(x.size)

        def one(belief: Belief) -> Belief:
            row = belief.whole.moments.count
            new = self._model(x.size).condition(shared.none, belief.whole, x, y)
            added = new.model.matrix.at[row].get(mode="fill", fill_value=0)
            kernel = _additive(new)
            told = additive.extend(belief.tables, kernel, points, new.x, added, _outputs(new))
            usable = new.moments.count > row
            tables = jax.tree.map(lambda a, b: jnp.where(usable, a, b), told, belief.tables)
            return Belief(new, tables, belief.accepted)

        return jax.vmap(one)(belief)

    def refit(self, shared: Shared, belief: Belief) -> Belief:
        dim = shared.none.frequencies.shape[1]
        model = self._model(dim)

        def one(key: Key, belief: Belief) -> Belief:
            old = model.rewarped(belief.whole)
            problem = fit.of_data(old.kernel, old.noise, old.x, old.standardized)

            def log_evidence(scopes: Scopes) -> Scalar:
                other = eqx.tree_at(lambda p: p.kernel.scopes, problem, scopes)
                return other.log_evidence(problem.theta)

            scopes, accepted = self.structure.update(key, _additive(old).scopes, dim, log_evidence)
            old = eqx.tree_at(lambda b: b.kernel.scopes, old, scopes)
            new = model.refit(shared.none, old)
            return Belief(new, self._tables(new), accepted)

        count = self.count(belief)
        keys = jax.vmap(lambda k: jr.fold_in(k, count))(jr.split(shared.key, self.structure.chains))
        return jax.vmap(one)(keys, belief)

    def count(self, belief: Belief) -> Count:
        return belief.whole.moments.count[0]

    def sample(self, key: Key, shared: Shared, belief: Belief) -> Function:
        chain_key, key = jr.split(key)
        chain = jr.randint(chain_key, (), 0, self.structure.chains)
        return jax.tree.map(lambda leaf: leaf[chain], self.draw(key, belief, SIZE))

    def draw(self, key: Key, belief: Belief, size: int) -> additive.Sample:
        """A function for standardized values from each chain, of `size` features a factor."""

        def one(key: Key, belief: FittedBelief) -> additive.Sample:
            kernel, inverse = _additive(belief), belief.model.matrix
            y = belief.standardized
            return additive.draw(key, kernel, belief.noise, belief.x, y, inverse, size)

        return jax.vmap(one)(jr.split(key, self.structure.chains), belief.whole)

    def predict(self, shared: Shared, belief: Belief, x: Point) -> tuple[Scalar, Scalar]:
        one = lambda b: self._model(x.size).predict(shared.none, b, x)  # noqa: E731
        means, variances = jax.vmap(one)(belief.whole)
        return mixed(jnp.full(means.shape, 1 / means.size, means.dtype), means, variances)

    def standardized(
        self, shared: Shared, belief: Belief, x: Point
    ) -> tuple[Float[Array, " chains"], Float[Array, " chains"]]:
        """Mean and variance of f for standardized values, of every chain."""
        one = lambda b: self._model(x.size).standardized(shared.none, b, x)  # noqa: E731
        return jax.vmap(one)(belief.whole)

    def parts(
        self, belief: Belief, x: Point
    ) -> tuple[Float[Array, "chains factors"], Float[Array, "chains factors"]]:
        """Mean and variance of every factor at a point, for standardized values (eq. 1)."""

        def one(belief: FittedBelief) -> tuple[Array, Array]:
            kernel, inverse = _additive(belief), belief.model.matrix
            k = jax.vmap(lambda z: kernel.parts(x, z))(belief.x)
            k = jnp.where(belief.used[:, None], k, 0)
            y = jnp.where(belief.used, belief.standardized, 0)
            w = dot(inverse, k)
            return dot(dot(inverse, y), w), kernel.variances - jnp.sum(w * w, axis=0)

        return jax.vmap(one)(belief.whole)

    def factors(
        self, belief: Belief
    ) -> tuple[Float[Array, "chains factors ..."], Float[Array, "chains factors ..."]]:
        """Mean and variance of every factor on its grid, for standardized values."""

        def one(belief: Belief) -> tuple[Array, Array]:
            moments = belief.whole.moments
            of_values, of_one = belief.tables.mean[:, 0], belief.tables.mean[:, 1]
            mean = (of_values - moments.mean * of_one) / moments.deviation
            return mean, jnp.maximum(belief.tables.variance, 0)

        return jax.vmap(one)(belief)

    def scopes(self, belief: Belief) -> Int[Array, "chains factors arity"]:
        """The structure of every chain."""
        return _additive(belief.whole).scopes

    def _tables(self, belief: FittedBelief) -> GridTables:
        points = self.points(belief.x.shape[1])
        kernel, outputs = _additive(belief), _outputs(belief)
        return additive.tables(kernel, points, belief.x, belief.model.matrix, outputs)


def _additive(belief: FittedBelief) -> AdditiveKernel:
    assert isinstance(belief.kernel, AdditiveKernel)
    return belief.kernel


def _outputs(belief: FittedBelief) -> Float[Array, "2 capacity"]:
    """The values less the first one, and 1; 0 where there is none."""
    outputs = jnp.stack([belief.values - belief.moments.first, jnp.ones_like(belief.y)])
    return jnp.where(belief.used[None, :], outputs, 0)
