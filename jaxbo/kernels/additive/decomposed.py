"""A model that is a sum of functions of a few variables each, with the beliefs about each on a grid.

    f(x) = Σ_I f_I(x_I)    →    mean_I and variance_I on the grid of I, for every I

The tables are brought up to every observation as it comes, and made anew when hyperparameters or
the structure are. Work that needs f alone goes to `Fitted`, which does the observing, the warping
and the fitting. Each chain of structures has a `Fitted`, and all are given the same observations.

Axes beside the axes of `jaxbo.types`, outer axes first:

    kinds      sets of tables that are proposed for one grid (`policy.Objective`)
    chains     structures that are held at the same time
    boxes      parts of the domain, each with a grid of its own
    factors    functions that add up; those of one group, where arrays are stacked by their groups
    places     coordinates of a factor, -1 where it has fewer
    grid       points on the axis of a variable; a table has such an axis for each of its variables

Each method maps over chains once. The functions inside know a single chain and, but for `distinct`,
a single box.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int

from jaxbo._check import is_a, require, whole
from jaxbo._keys import Held, held
from jaxbo.domains.base import AbstractDomain, Axes, Cube, Regions
from jaxbo.kernels.additive import chain as chains
from jaxbo.kernels.additive import kernel as additive
from jaxbo.kernels.additive import tables as factor_tables
from jaxbo.kernels.additive.chain import Evidence, Logs, Scopes
from jaxbo.kernels.additive.kernel import AdditiveKernel, Groups
from jaxbo.kernels.additive.structure import AbstractStructure, Given
from jaxbo.kernels.additive.tables import GridTables
from jaxbo.kernels.factors.graph import Tables, check_memory
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.models import fit
from jaxbo.kernels.models.ensemble import mixed
from jaxbo.kernels.models.fit import Priors
from jaxbo.kernels.models.fitted import Exact, Fitted, FittedBelief
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.kernels.moments import Moments
from jaxbo.kernels.processes.covariance import AbstractKernel, SquaredExponential
from jaxbo.kernels.processes.features import SineCosine
from jaxbo.types import Count, Function, Key, Point, Scalar, about, named

#: Features a factor of a sampled function.
SIZE = 100


class AdditiveShared(eqx.Module):
    """The key that draws the first structure and every later structure, and the domain of their
    variables.
    """

    draws: Held = eqx.field(converter=held)
    none: SineCosine
    domain: AbstractDomain


class AdditiveBelief(eqx.Module):
    """The belief of a chain about f, and about every factor on its grids. A state has all chains,
    stacked.

    `tables` are a set for every box. `accepted` is the share of structural moves that the last fit
    took, and `pairs` how often each pair of variables shared a factor. It is None if the structure
    is not learned.
    """

    whole: FittedBelief
    tables: GridTables
    points: Float[Array, "boxes dim grid"]
    accepted: Scalar
    pairs: Float[Array, "variables variables"] | None = None


class FactorGrid(NamedTuple):
    """The grid of a box, and mean and variance of every factor there, for standardized values."""

    points: Float[Array, "dim grid"]
    mean: Tables
    variance: Tables


class Decomposed(AbstractSurrogate):
    """An additive process: a sum of functions of a few variables each, with fitted hyperparameters.

    Variables are coordinates. Variables of a `Space` are parameters, a choice with all its
    coordinates. Scopes of fewest variables are held first, and the variables of each are sorted.

    Memory: observations (observations + variables) numbers a chain, and its variables squared if
    the structure is learned. Every box takes `grid` numbers a variable and 3 grid^(its variables) a
    factor. If scopes are not given, it is as if all factors had as many variables as the largest
    may have. A query takes up to twice as much.

    Args:
        structure: The variables that share a factor: scopes such as [[0, 1], [1, 2]],
            `RandomTree()`, or `Sampled()`, which learns them.
        capacity: The most observations that an agent will ever make, at least 1.
        form: The kernel of every factor, from which fitting starts. None:
            `SquaredExponential(0.3)`.
        noise: The noise variance, above 0, as in `Fitted`. Default: 1e-3.
        refit_every: Number of evaluations between fits, at least 1. None: nothing is fitted.
            Default: 10.
        warp: Whether skewed values are warped, as in `Fitted`. Default: False.
        grid: Number of points on the axis of a variable, at least 2. Integers and choices are on
            all their values, if they are no more. Default: 32.
        per_factor: Whether every factor has a variance and length scales of its own. If not,
            factors share the variance evenly, and length scales as `form` has them: a number, or a
            number for each coordinate. Default: False.
        priors: Priors of the hyperparameters, as in `Fitted`. None: around `form` and `noise`.
        regions: Boxes, each of which has a grid of its own. None: a single grid.
        zoom: Share of every axis, in (0, 1), that a further grid has around the best point
            observed. It is placed anew at every fit. None: there is no such grid.

    Raises:
        ValueError: A number is out of its range, the tables take more than 4 GiB, or length scales
            are not a number or a number for each coordinate.

    Example:
        >>> import jax, jaxbo
        >>> model = jaxbo.Decomposed([[1, 2], [0]], capacity=30, grid=16)
        >>> model.structure.scopes
        ((0,), (1, 2))
        >>> shared = model.setup(jax.random.key(0), dim=3)
        >>> [table.shape for table in jax.eval_shape(model.start, shared).tables.variance]
        [(1, 1, 1, 16), (1, 1, 1, 16, 16)]
    """

    structure: AbstractStructure
    capacity: int = eqx.field(static=True)
    form: AbstractKernel
    noise: Scalar
    refit_every: int | None = eqx.field(static=True)
    warp: bool = eqx.field(static=True)
    grid: int = eqx.field(static=True)
    per_factor: bool = eqx.field(static=True)
    priors: Priors | None
    regions: Regions | None = eqx.field(static=True)
    zoom: float | None = eqx.field(static=True)

    def __init__(
        self,
        structure: AbstractStructure | Sequence[Sequence[SupportsIndex]],
        capacity: int,
        *,
        form: AbstractKernel | None = None,
        noise: Scalar | float = 1e-3,
        refit_every: int | None = 10,
        warp: bool = False,
        grid: int = 32,
        per_factor: bool = False,
        priors: Priors | None = None,
        regions: Regions | None = None,
        zoom: float | None = None,
    ):
        given = isinstance(structure, AbstractStructure)
        self.structure = structure if given else about("structure", Given)(structure)
        self.capacity = capacity  # pyright: ignore[reportIncompatibleMethodOverride]
        self.form = SquaredExponential(0.3) if form is None else form
        self.noise = named("noise")(noise)
        self.refit_every, self.warp = refit_every, warp
        self.grid, self.per_factor = grid, per_factor
        self.priors, self.regions, self.zoom = priors, regions, zoom

    def __check_init__(self):
        whole("grid", self.grid, least=2)
        is_a("form", self.form, AbstractKernel)
        zoom = self.zoom
        require(zoom is None or 0 < zoom < 1, f"zoom must be a share of an axis, got {zoom}.")
        require(
            zoom is None or self.refit_every is not None,
            "zoom is placed anew at every fit, and with refit_every=None there is none.",
        )
        require(
            not self.structure.learns or self.refit_every is not None,
            "the structure is learned at every fit, and with refit_every=None there is none.",
        )
        self._model  # noqa: B018  (checks the rest)

    @property
    def _model(self) -> Fitted:
        return Fitted(
            self.capacity,
            self.form,
            noise=self.noise,
            refit_every=self.refit_every,
            inference=Exact(),
            warp=self.warp,
            priors=self.priors,
        )

    @property
    def period(self) -> int | None:
        return self.refit_every

    def setup(self, key: Key, dim: int) -> AdditiveShared:
        return self.over(Cube(dim), key)

    def over(self, domain: AbstractDomain, key: Key) -> AdditiveShared:
        """Does the same as `setup` for the variables of a domain, which need not be coordinates.

        Args:
            domain: The space to search.
            key: Random key.

        Returns:
            The part that all agents share.

        Raises:
            ValueError: Regions or length scales do not fit the domain, or tables take too much
                memory.
        """
        dim, regions = domain.dim, self.regions
        require(
            regions is None or regions.dim == dim,
            f"regions have {regions and regions.dim} dimensions, the domain has {dim}.",
        )
        scales = self.form.length_scale.shape
        require(
            scales in ((), (dim,)),
            f"length_scale of form must be one number or one for each of {dim} coordinates, got shape "
            f"{scales}.",
        )
        domain = domain.product
        variables = len(domain.axes(self.grid).columns)
        scopes = jax.eval_shape(lambda k: self.structure.start(k, variables), key)
        groups = (scopes.shape,) if self._groups is None else self._groups
        cells = sum(count * self.grid**size for count, size in groups)
        boxes = self.cover + (self.zoom is not None)
        check_memory(3 * boxes * self.structure.chains * cells)
        # The exact process of `Fitted` needs no features; those of samples are drawn with them.
        none = SineCosine(jnp.zeros((0, dim)), jnp.ones(()), jnp.ones(()))
        return AdditiveShared(key, none, domain)

    @property
    def cover(self) -> int:
        """Returns how many boxes cover the domain: the first of all boxes."""
        return 1 if self.regions is None else self.regions.count

    def start(self, shared: AdditiveShared) -> AdditiveBelief:
        axes = shared.domain.axes(self.grid)
        points = self._points(shared, jnp.full(shared.domain.dim, 0.5))

        def one(key: Key) -> AdditiveBelief:
            kernel = self._kernel(axes, self.structure.start(key, len(axes.columns)))
            belief = self._model.start(shared.none)
            belief = eqx.tree_at(lambda b: b.kernel, belief, kernel)
            pairs = jnp.zeros((len(axes.columns),) * 2) if self.structure.learns else None
            tables = _tables(belief, points)
            return AdditiveBelief(belief, tables, points, jnp.zeros(()), pairs)

        return jax.vmap(one)(jr.split(shared.draws.key, self.structure.chains))

    def _points(self, shared: AdditiveShared, center: Point) -> Float[Array, "boxes dim grid"]:
        regions = self.regions
        lower = jnp.zeros((1, center.size)) if regions is None else regions.lower
        upper = jnp.ones((1, center.size)) if regions is None else regions.upper
        if self.zoom is not None:
            near = _corners(center, self.zoom)
            lower, upper = (jnp.vstack(two) for two in zip((lower, upper), near, strict=True))
        return jax.vmap(lambda *corners: self._within(shared, *corners))(lower, upper)

    def _within(
        self, shared: AdditiveShared, lower: Point, upper: Point
    ) -> Float[Array, "dim grid"]:
        """The grid of a box, from its corners."""
        axes = shared.domain.axes(self.grid)
        points = lower[:, None] + (upper - lower)[:, None] * axes.points
        points = jnp.where(axes.ordered[:, None], points, axes.points)
        return jax.vmap(shared.domain.project, 1, 1)(points)

    @property
    def _groups(self) -> Groups | None:
        """How many factors have how many variables, if that is known in advance."""
        fixed = self.structure.fixed
        if fixed is None:
            return None
        return tuple((len(list(same)), size) for size, same in itertools.groupby(fixed, len))

    def _kernel(self, axes: Axes, scopes: Scopes) -> AdditiveKernel:
        form, width, groups = self.form, axes.columns.shape[1], self._groups
        alone = self.structure.alone(len(axes.columns))
        scopes = _coordinates(axes, scopes)
        shared = AdditiveKernel(scopes, form, width=width, groups=groups)
        if not self.per_factor:
            if not alone:
                return shared
            variance = jnp.broadcast_to(shared.variance, (2,))
            return AdditiveKernel(scopes, form, None, variance, width, groups, alone)
        # A factor may get variables later: it starts with a share as well.
        used = jnp.any(scopes >= 0, axis=1)
        variances = jnp.where(used, shared.variances, jnp.max(shared.variances))
        return AdditiveKernel(scopes, form, shared.length_scales, variances, width, groups)

    def condition(
        self, shared: AdditiveShared, belief: AdditiveBelief, x: Point, y: Scalar
    ) -> AdditiveBelief:
        def one(belief: AdditiveBelief) -> AdditiveBelief:
            row = belief.whole.moments.count
            new = self._model.condition(shared.none, belief.whole, x, y)
            added = new.model.matrix.at[row].get(mode="fill", fill_value=0)

            def extended(tables: GridTables, points: Float[Array, "dim grid"]) -> GridTables:
                kernel, outputs = _additive(new), _outputs(new)
                return factor_tables.extend(tables, kernel, points, new.x, added, outputs)

            told = jax.vmap(extended)(belief.tables, belief.points)
            usable = new.moments.count > row
            tables = jax.tree.map(lambda a, b: jnp.where(usable, a, b), told, belief.tables)
            return AdditiveBelief(new, tables, belief.points, belief.accepted, belief.pairs)

        return jax.vmap(one)(belief)

    def refit(self, shared: AdditiveShared, belief: AdditiveBelief) -> AdditiveBelief:
        axes, model = shared.domain.axes(self.grid), self._model
        points = self._points(shared, self.incumbent(belief))

        def one(key: Key, belief: AdditiveBelief) -> AdditiveBelief:
            old = model.rewarped(belief.whole)
            evidence = self.evidence(shared, old)
            scopes, variables = _variables(axes, _additive(old)), len(axes.columns)
            chain = self.structure.update(key, scopes, variables, evidence)
            old = eqx.tree_at(lambda b: b.kernel.scopes, old, _coordinates(axes, chain.scopes))
            if chain.logs is not None:
                # Values that are nearly all the same say nothing of noise and variances.
                logs = jnp.where(old.told, chain.logs, 0)
                kernel, noise = _scaled(
                    _additive(old), old.noise, logs, self.structure.alone(variables)
                )
                old = eqx.tree_at(lambda b: (b.kernel, b.noise), old, (kernel, noise))
            new = model.refit(shared.none, old)
            tables = _tables(new, points)
            return AdditiveBelief(new, tables, points, chain.accepted, chain.pairs)

        count = self.count(belief)
        keys = jax.vmap(lambda k: jr.fold_in(k, count))(
            jr.split(shared.draws.key, self.structure.chains)
        )
        return jax.vmap(one)(keys, belief)

    def evidence(self, shared: AdditiveShared, belief: FittedBelief) -> Evidence:
        """Gives the log evidence of structures, noise and variances, as a chain of them needs it.

        Args:
            shared: The result of `setup`.
            belief: The belief of a chain about f, whose hyperparameters are those of `Logs` 0.

        Returns:
            The log evidence of the standardized values, and the priors of a fit.
        """
        axes, model = shared.domain.axes(self.grid), self._model
        problem = fit.of_data(
            belief.kernel,
            belief.noise,
            belief.x,
            belief.standardized,
            bounds=model.limits,
            priors=model.prior,
        )
        return _evidence(problem, axes, self.structure.alone(len(axes.columns)))

    def count(self, belief: AdditiveBelief) -> Count:
        return belief.whole.moments.count[0]

    def incumbent(self, belief: AdditiveBelief) -> Point:
        """Finds the best point observed.

        Args:
            belief: The belief.

        Returns:
            The point; the origin before there is such a point.
        """
        y = belief.whole.y[0]
        return belief.whole.x[0, jnp.argmax(jnp.where(jnp.isfinite(y), y, -jnp.inf))]

    def sample(self, key: Key, shared: AdditiveShared, belief: AdditiveBelief) -> Function:
        chain_key, key = jr.split(key)
        chain = jr.randint(chain_key, (), 0, self.structure.chains)
        return jax.tree.map(lambda leaf: leaf[chain], self.draw(key, belief, SIZE))

    def draw(self, key: Key, belief: AdditiveBelief, size: int) -> additive.Sample:
        """Draws a function for standardized values from each chain.

        Args:
            key: Random key.
            belief: The belief.
            size: Number of features a factor.

        Returns:
            The functions, with an axis of chains.
        """

        def one(key: Key, belief: FittedBelief) -> additive.Sample:
            kernel, inverse = _additive(belief), belief.model.matrix
            y = belief.standardized
            return additive.draw(key, kernel, belief.noise, belief.x, y, inverse, size)

        return jax.vmap(one)(jr.split(key, self.structure.chains), belief.whole)

    def predict(
        self, shared: AdditiveShared, belief: AdditiveBelief, x: Point
    ) -> tuple[Scalar, Scalar]:
        one = lambda b: self._model.predict(shared.none, b, x)  # noqa: E731
        means, variances = jax.vmap(one)(belief.whole)
        return mixed(jnp.full(means.shape, 1 / means.size, means.dtype), means, variances)

    def standardized(
        self, shared: AdditiveShared, belief: AdditiveBelief, x: Point
    ) -> tuple[Float[Array, " chains"], Float[Array, " chains"]]:
        """Predicts f for standardized values, without noise.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            x: The point.

        Returns:
            Mean and variance of every chain.
        """
        one = lambda b: self._model.standardized(shared.none, b, x)  # noqa: E731
        return jax.vmap(one)(belief.whole)

    def parts(
        self, belief: AdditiveBelief, x: Point
    ) -> tuple[Float[Array, "chains factors"], Float[Array, "chains factors"]]:
        """Predicts every factor at a point, for standardized values (eq. 1).

        Args:
            belief: The belief.
            x: The point.

        Returns:
            Mean and variance of every factor of every chain.
        """

        def one(belief: FittedBelief) -> tuple[Array, Array]:
            kernel, inverse = _additive(belief), belief.model.matrix
            k = jax.vmap(lambda z: kernel.parts(x, z))(belief.x)
            k = jnp.where(belief.used[:, None], k, 0)
            y = jnp.where(belief.used, belief.standardized, 0)
            w = dot(inverse, k)
            return dot(dot(inverse, y), w), kernel.variances - jnp.sum(w * w, axis=0)

        return jax.vmap(one)(belief.whole)

    def grids(self, belief: AdditiveBelief) -> FactorGrid:
        """Reads the beliefs about every factor on all grids.

        Args:
            belief: The belief.

        Returns:
            The beliefs, with axes [chains, boxes].
        """

        def one(belief: AdditiveBelief) -> FactorGrid:
            moments = belief.whole.moments
            return jax.vmap(lambda p, t: _read(moments, p, t))(belief.points, belief.tables)

        return jax.vmap(one)(belief)

    def around(
        self, shared: AdditiveShared, belief: AdditiveBelief, center: Point, share: Scalar | float
    ) -> FactorGrid:
        """Computes the beliefs about every factor on another grid, around a point.

        Args:
            shared: The result of `setup`.
            belief: The belief.
            center: A point of the domain.
            share: The share of every axis that the grid has.

        Returns:
            The beliefs, with an axis of chains.
        """
        points = self._within(shared, *_corners(center, share))
        return jax.vmap(lambda b: _read(b.moments, points, _made(b, points)))(belief.whole)

    def distinct(
        self, belief: AdditiveBelief
    ) -> tuple[Bool[Array, "chains boxes _factors *_grid"], ...]:
        """Says which points of the factors' grids are no repetitions.

        A parameter of few values repeats the last, a place without a variable is the same
        everywhere, and boxes may differ in other variables only. Points on the border of two boxes
        are of both.

        Args:
            belief: The belief.

        Returns:
            A truth value for each point of each table.
        """

        def one(belief: AdditiveBelief) -> tuple[Bool[Array, "boxes _factors *_grid"], ...]:
            boxes = belief.points
            alike = jnp.all(boxes[:, None] == boxes[None, :], axis=3)
            earlier = jnp.tri(len(boxes), k=-1, dtype=bool)
            of_box = lambda *box: _distinct(_additive(belief.whole), *box)  # noqa: E731
            return jax.vmap(of_box)(boxes, alike & earlier[:, :, None])

        return jax.vmap(one)(belief)

    def scopes(
        self, shared: AdditiveShared, belief: AdditiveBelief
    ) -> Int[Array, "chains factors arity"]:
        """Lists the variables of every factor of every chain.

        Args:
            shared: The result of `setup`.
            belief: The belief.

        Returns:
            The variables, -1 for empty places.
        """
        axes = shared.domain.axes(self.grid)
        return jax.vmap(lambda b: _variables(axes, _additive(b)))(belief.whole)


def _tables(belief: FittedBelief, points: Float[Array, "boxes dim grid"]) -> GridTables:
    """The tables of every box."""
    return jax.vmap(lambda p: _made(belief, p))(points)


def _made(belief: FittedBelief, points: Float[Array, "dim grid"]) -> GridTables:
    kernel, outputs, inverse = _additive(belief), _outputs(belief), belief.model.matrix
    return factor_tables.tables(kernel, points, belief.x, belief.used, inverse, outputs)


def _read(moments: Moments, points: Float[Array, "dim grid"], tables: GridTables) -> FactorGrid:
    """Mean and variance of standardized values, from tables of the values less the first value, and of
    1.
    """

    def mean(table: Float[Array, "factors outputs *grid"]) -> Float[Array, " factors *grid"]:
        return (table[:, 0] - moments.mean * table[:, 1]) / moments.deviation

    variance = jax.tree.map(lambda v: jnp.maximum(v, 0), tables.variance)
    return FactorGrid(points, jax.tree.map(mean, tables.mean), variance)


def _distinct(
    kernel: AdditiveKernel, points: Float[Array, "dim grid"], as_before: Bool[Array, "boxes dim"]
) -> tuple[Bool[Array, " _factors *_grid"], ...]:
    """`distinct` of a single box, whose points on some axes are `as_before` in other boxes."""
    same = points[:, :, None] == points[:, None, :]
    before = jnp.tri(points.shape[1], k=-1, dtype=bool)

    def factor(scope: Int[Array, " places"]) -> Bool[Array, "*grid"]:
        found = ~jnp.any(jnp.all((scope < 0)[None, :] | as_before[:, scope], axis=1))
        for variable in scope.reshape(-1, kernel.width):
            alike = jnp.all((variable < 0)[:, None, None] | same[variable], axis=0)
            new = ~jnp.any(alike & before, axis=1)
            found = found[..., None] & new.reshape((1,) * found.ndim + new.shape)
        return found

    return tuple(jax.vmap(factor)(kernel.scopes[of]) for of in kernel.members)


def _evidence(problem: fit.Problem, axes: Axes, alone: int) -> Evidence:
    """The evidence of structures around the hyperparameters of the problem, of which the first `alone`
    factors stay.

    A move changes the covariance of a single factor.
    """
    kernel, noise = problem.unpack(problem.theta)
    assert isinstance(kernel, AdditiveKernel)

    def part(number: Count, scope: Int[Array, " arity"]) -> Float[Array, "capacity capacity"]:
        return kernel.part(number, _coordinates(axes, scope[None])[0], problem.squares)

    def covariance(
        parts: Float[Array, "capacity capacity"], logs: Logs
    ) -> tuple[Float[Array, "capacity capacity"], Scalar]:
        factors = jnp.exp(logs.astype(parts.dtype))
        return factors[1] * staying + factors[2] * parts, factors[0] * noise

    def total(scopes: Scopes, parts: Float[Array, "capacity capacity"], logs: Logs) -> Scalar:
        other = eqx.tree_at(lambda k: k.scopes, kernel, _coordinates(axes, scopes))
        K, scaled = covariance(parts, logs)
        # Rows that are not in use are noise alone, which says nothing.
        unused = jnp.sum(~problem.rows, dtype=K.dtype) * jnp.log(scaled) / 2
        return problem.evidence_of(other.share * K, scaled) + unused

    def prior(logs: Logs) -> Scalar:
        theta = problem.pack(*_scaled(kernel, noise, logs, alone))
        inside = jnp.all((theta >= problem.low) & (theta <= problem.high))
        return jnp.where(inside, problem.log_prior(theta), -jnp.inf)

    def scores(
        key: Key, parts: Float[Array, "capacity capacity"], logs: Logs
    ) -> Float[Array, "variables variables"]:
        K, scaled = covariance(parts, logs)
        K = jnp.where(problem.rows[:, None] & problem.rows[None, :], K, 0)
        K = K + scaled * jnp.eye(len(K), dtype=K.dtype)
        numbers = jnp.arange(alone)
        each = jax.vmap(lambda v: part(v, first[v]) / kernel.variances[v])(numbers)
        return chains.scores(key, each, K, problem.y, problem.rows, scaled)

    first = _variables(axes, kernel)[:alone]
    add = lambda total, factor: (total + part(*factor), None)  # noqa: E731
    staying = jnp.zeros_like(problem.squares[0])
    staying, _ = jax.lax.scan(add, staying, (jnp.arange(alone), first))
    return Evidence(part, total, prior, scores if alone else None)


def _scaled(
    kernel: AdditiveKernel, noise: Scalar, logs: Logs, alone: int
) -> tuple[AdditiveKernel, Scalar]:
    """The kernel and the noise with their factors: of noise, of the first `alone` factors, of others."""
    logs = logs.astype(kernel.variance.dtype)
    # If there are two variances, the first is that of all factors that stay.
    first = 1 if kernel.alone else alone
    which = (jnp.arange(kernel.variance.size) >= first).astype(int)
    variance = kernel.variance * jnp.exp(logs[1:][which.reshape(kernel.variance.shape)])
    scaled = eqx.tree_at(lambda k: k.variance, kernel, variance)
    return scaled, noise * jnp.exp(logs[0])


def _corners(center: Point, share: Scalar | float) -> tuple[Point, Point]:
    """The corners of the box in the cube with that share of every axis, as nearly around the center as
    can be.
    """
    corner = jnp.clip(center - share / 2, 0, 1 - share)
    return corner, corner + share


def _additive(belief: FittedBelief) -> AdditiveKernel:
    assert isinstance(belief.kernel, AdditiveKernel)
    return belief.kernel


def _coordinates(axes: Axes, scopes: Scopes) -> Int[Array, "factors places"]:
    """The coordinates of every factor; the coordinates of a variable are side by side."""
    columns = jnp.asarray(axes.columns, scopes.dtype)
    each = jnp.where(scopes[:, :, None] < 0, -1, columns[scopes])
    return each.reshape(len(scopes), -1)


def _variables(axes: Axes, kernel: AdditiveKernel) -> Scopes:
    """The variables of every factor, from its coordinates."""
    first = kernel.scopes[:, :: kernel.width]
    return jnp.where(first < 0, -1, jnp.asarray(axes.owners, first.dtype)[first])


def _outputs(belief: FittedBelief) -> Float[Array, "2 capacity"]:
    """The values less the first value, and 1; 0 in rows without a value."""
    outputs = jnp.stack([belief.values - belief.moments.first, jnp.ones_like(belief.y)])
    return jnp.where(belief.used[None, :], outputs, 0)
