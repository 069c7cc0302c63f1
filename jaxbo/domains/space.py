"""The domain of named parameters: between their values and the points of the unit cube."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxbo._check import require
from jaxbo._keys import unwrap, wrap
from jaxbo.domains import _tables, constraint
from jaxbo.domains.base import AbstractDomain, Axes, Cube, clip
from jaxbo.domains.constraint import Constraint
from jaxbo.domains.parameters import (
    Conditional,
    ConstantParameter,
    Context,
    Integer,
    Parameter,
    Real,
    as_constant,
    is_missing,
)
from jaxbo.types import Count, Flag, Key, Point, Points, Scalar

#: A draw that must be allowed is given up after so many times the points that two should take.
_TRIES = 64


class Space(AbstractDomain):
    """Named parameters, in order, as a domain in the unit cube.

    A real number, an integer or an ordinal takes a single coordinate. A `Categorical` of k choices
    takes k. A number, a string, a truth value or None stands for itself at every point, and takes none.

    `decode` and `encode` are for Python objectives, `unpack` for compiled objectives. They agree with
    `project` on integers and choices to the last bit: the surrogate and the objective see the same
    rounded point. Reals are rounded to multiples of 2^-24, below which float32 cannot tell two points
    near 1 apart. So `encode` is the exact inverse of `decode`. The derivative of a real coordinate
    passes through the rounding.

    A parameter may be active only where a parameter before it has certain values (`Real.when`).
    Elsewhere `decode` has no key for it, and its coordinates are in the middle (a choice: the first).
    To the model all such points are the same. A `Context` is given with every question and never
    chosen.

    Args:
        mapping: The parameters by name, for names that Python does not allow.
        where: A function of a point's values by name, as `decode` gives them, that says whether it may
            be asked. Searches call it on the host for some thousand points a round. Under `jax.jit` it
            is compiled instead, and takes the values of `unpack`, with the precision of float32.
            Searches look at up to sixteen times as many points as they need. If fewer are allowed, the
            points cover them more thinly. Default: all may be asked.
        parameters: The parameters by name.

    Raises:
        ValueError: Bounds, scale or choices of a parameter are impossible, or `where` allows none of
            16384 points.

    Example:
        >>> from jaxbo import Categorical, Integer, Real, Space
        >>> penalty = Real(0.01, 100.0, log=True).when(model="svm")
        >>> space = Space(model=Categorical("tree", "svm"), C=penalty, depth=Integer(1, 8), seed=7)
        >>> x = space.encode({"model": "tree", "depth": 3})
        >>> space.dim, x.tolist()
        (4, [1.0, 0.0, 0.5, 0.3125])
        >>> space.decode(x)
        {'model': 'tree', 'depth': 3, 'seed': 7}
    """

    parameters: tuple[tuple[str, Parameter], ...] = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    constants: tuple[tuple[str, ConstantParameter], ...] = eqx.field(static=True)
    conditions: _tables.Conditions = eqx.field(static=True)
    context: tuple[str, ...] = eqx.field(static=True)
    constraint: Constraint | None
    given: Point | None

    def __init__(
        self,
        mapping: Mapping[str, object] | None = None,
        /,
        *,
        where: Callable[[dict[str, Any]], Any] | None = None,
        **parameters: object,
    ):
        mapping = {} if mapping is None else mapping
        if not isinstance(mapping, Mapping):
            raise ValueError(
                f"a space is given parameters by name, got {mapping!r:.80}: write "
                "Space(x=Real(0.0, 1.0)), or Space({'x': Real(0.0, 1.0)})."
            )
        if both := sorted(set(mapping) & set(parameters)):
            raise ValueError(f"parameters {both} were given twice, expected each name once.")
        all_parts = {**mapping, **parameters}
        parts = {name: part for name, part in all_parts.items() if as_constant(part) is None}
        if not parts:
            raise ValueError("a space needs a parameter, such as Space(x=Real(0.0, 1.0)).")
        self.names = tuple(all_parts)
        self.constants = tuple(
            (name, constant) for name, part in all_parts.items() if (constant := as_constant(part))
        )
        self.parameters = tuple((name, _checked(name, part)) for name, part in parts.items())
        self.context = tuple(name for name, part in parts.items() if isinstance(part, Context))
        self.conditions = _conditions(dict(self.parameters), parts)
        self.dim = len(self._tables.owner)
        self.given = self.constraint = None
        if where is not None:
            self.constraint = Constraint.of(where)
            if self.constraint.compiled:
                constraint.check_compiled(
                    self.constraint.predicate, self._everywhere.unpack, self.dim
                )
            self.constraint = self.constraint.having(*self._examples("of the whole space"))

    def sample(self, key: Key, count: int) -> Points:
        """Draws independent points, in which every integer and every choice is as likely as the next.

        Args:
            key: Random key.
            count: Number of points.

        Returns:
            The points.
        """
        self.must_be_given()
        if self.constraint is None:
            return self._points(Cube(len(self.parameters)).sample(key, count))
        return jax.vmap(self._drawn)(jr.split(key, count))

    def candidates(self, key: Key, count: int) -> Points:
        """Gives points that cover the space evenly. Some coincide if no parameter is real.

        Args:
            key: Random key.
            count: Number of points.

        Returns:
            The points.
        """
        self.must_be_given()
        cube, held = Cube(len(self.parameters)), self.constraint
        if held is None:
            return self._points(cube.candidates(key, count))
        even = self._points(cube.candidates(key, held.draws(count)))
        examples = held.examples.astype(even.dtype)
        return constraint.spread_evenly(even, jax.vmap(self.allows)(even), examples, count)

    def project(self, x: Point) -> Point:
        """Gives the point of the space that a point of the cube stands for. `where` is not asked.

        Reals are clipped. Integers go to the point of their cell, choices to the largest coordinate
        (the first of equals), inactive parameters to their middle, and a context to its given value.

        Args:
            x: A point.

        Returns:
            A point of the space.
        """
        inside = self._settled(jnp, Cube(self.dim).project(x))
        snapped = _tables.snap(jnp, self._tables, inside)
        passed = inside + jax.lax.stop_gradient(snapped - inside)
        return jnp.where(self._tables.real, passed, snapped)

    def contains(self, x: Point) -> Flag:
        """Says whether a point is in the cube, is already rounded, and is allowed by `where`.

        Args:
            x: A point.

        Returns:
            Whether it is, with inactive and given parameters in their places.
        """
        within = (x >= 0) & (x <= 1)
        free = self._tables.real & (self._settled(jnp, x) == x)
        return jnp.all(within & (free | (x == self.project(x)))) & self.allows(x)

    @property
    def constrained(self) -> bool:
        """Whether the space has a `where`."""
        return self.constraint is not None

    def allows(self, x: Point) -> Flag:
        """Says whether `where` is True at the values of a point.

        Args:
            x: A point that `project` gave.

        Returns:
            Whether it is.
        """
        held = self.constraint
        if held is None:
            return jnp.ones((), bool)
        if held.compiled:
            return jnp.asarray(held.predicate(self.unpack(x)))
        return constraint.on_host(held.predicate, self._everywhere.decode, self.project(x))

    @property
    def product(self) -> "Space":
        """The space of all combinations of the parameters' values, each active, chosen and allowed."""
        return Space(dict(self.parameters))

    def at(self, context: Mapping[str, Any]) -> "Space":
        """Gives the part of the space where its context has certain values.

        Args:
            context: The values by name.

        Returns:
            The part.

        Raises:
            ValueError: Values are missing, unknown or impossible, or `where` allows nothing there.
        """
        if set(context) != set(self.context):
            raise ValueError(
                f"the context of this space is {list(self.context)}, got values of {list(context)}: give "
                "one for each, as in Desk.ask(context={...})."
            )
        x = np.full(self.dim, 0.5)
        for name, place, parameter in self._places():
            if name in context:
                x[place] = _coded(name, parameter, context[name])
        given = _tables.snap(np, self._tables, x.astype(_precision()))
        space = _with(self, given=jnp.asarray(given))
        if self.constraint is None:
            return space
        found, _ = space._examples(f"with the context {dict(context)}")
        return _with(space, constraint=_with(self.constraint, examples=found))

    @property
    def somewhere(self) -> "Space":
        """The space at some context. A program that is compiled for it serves for any other."""
        return _with(self, given=jnp.zeros(self.dim)) if self.context else self

    def axes(self, grid: int) -> Axes:
        """Gives a grid for every parameter: all of its values if the grid has room, else an even choice.

        Args:
            grid: Number of points for each parameter.

        Returns:
            The parameters with their grids.

        Raises:
            ValueError: A parameter has more choices than that.
        """
        tables = self._tables
        values = np.zeros((len(self.parameters), grid))
        for row, (name, parameter) in enumerate(self.parameters):
            try:
                values[row] = parameter.spread(grid)
            except ValueError as error:
                raise ValueError(f"parameter {name!r}: {error}.") from None
        place = self.product._place
        points = jax.vmap(place, in_axes=1, out_axes=1)(jnp.asarray(values, float))
        columns = np.where(tables.taken, tables.rows, -1)
        return Axes(columns, points, ~tables.categorical)

    def all_points(self, sizes: Sequence[int]) -> Float[np.ndarray, "points dim"]:
        """Gives every point of a space without reals, on the host.

        Args:
            sizes: The number of values of each parameter.

        Returns:
            The points.
        """
        values = [p.spread(size) for (_, p), size in zip(self.parameters, sizes, strict=True)]
        units = np.asarray(list(itertools.product(*values)), _precision())
        X = np.unique([self._placed_on_host(unit) for unit in units], axis=0)
        return X if self.constraint is None else X[self._asked(self.constraint, X)]

    def unpack(self, x: Point) -> dict[str, Scalar | Count | Flag]:
        """Gives the values of a point by name, for compiled objectives.

        Reals are in the precision of `x`, with bounds rounded inward. A compiled and a Python objective
        see the same value to a few units of that precision (on a log scale, times the size of the
        logarithm). Constants are there if they are numbers.

        Args:
            x: A point.

        Returns:
            Real numbers, int32 integers, and int32 numbers of choices. An inactive parameter has the
            value of its middle: `active` tells.
        """
        x = self.project(x)
        tables, reals = self._tables, self._reals(x)
        cells = _tables.cells_of(jnp, tables, x)
        values = {name: held.unpacked(x.dtype) for name, held in self.constants if held.is_number}
        for (name, parameter), start in zip(self.parameters, tables.starts, strict=True):
            values[name] = reals[start] if isinstance(parameter, Real) else cells[start]
            if isinstance(parameter, Integer):
                values[name] = parameter.lower + cells[start] * parameter.step
        return {name: values[name] for name in self.names if name in values}

    def active(self, x: Point) -> dict[str, Flag]:
        """Says which parameters have a value at a point (`Real.when`).

        Args:
            x: A point.

        Returns:
            Whether each is active, by name.
        """
        found = _tables.active(jnp, self._tables, self.project(x))
        return {name: found[i] for i, (name, _) in enumerate(self.parameters)}

    def decode(self, x: Float[ArrayLike, " dim"]) -> dict[str, Any]:
        """Gives the values of a point by name, on the host.

        Real numbers are in float64 whatever the precision of `x`, and never outside the bounds.

        Args:
            x: A point.

        Returns:
            Python numbers and the choices themselves, with constants and without inactive parameters.

        Raises:
            ValueError: `x` is not a single point.
        """
        x = np.asarray(x)
        if x.shape != (self.dim,):
            raise ValueError(f"x has shape {x.shape}, expected ({self.dim},): one point.")
        x, tables = x.astype(np.result_type(x, np.float32)), self._tables
        x = self._settled(np, clip(np, x, np.zeros_like(x), np.ones_like(x)))
        cells, reals = _tables.cells_of(np, tables, x), _tables.snap(np, tables, x)
        active = _tables.active(np, tables, x)
        values = {name: held.value for name, held in self.constants}
        parts = zip(self.parameters, tables.starts, active, strict=True)
        for (name, parameter), start, here in parts:
            if not here:
                continue
            real = isinstance(parameter, Real)
            values[name] = (
                parameter.decode(float(reals[start]))
                if real
                else parameter.value(int(cells[start]))
            )
        return {name: values[name] for name in self.names if name in values}

    def encode(self, values: Mapping[str, Any]) -> Float[np.ndarray, " dim"]:
        """Gives the point with certain values, in JAX's default precision.

        Args:
            values: The values by name. Constants may be left out. Inactive parameters must be left out,
                or be None or NaN as in a table.

        Returns:
            The point.

        Raises:
            ValueError: A parameter is missing, unknown, out of range, not among its choices or
                inactive, or `where` does not allow the point.
        """
        values = _by_name(values)
        x = self._encoded(values)
        x = _tables.snap(np, self._tables, self._settled(np, x))
        if self.constraint is not None and not self._asked(self.constraint, x[None])[0]:
            raise ValueError(f"where does not allow {self.decode(x)}.")
        return x

    def _encoded(self, values: dict[str, Any]) -> Float[np.ndarray, " dim"]:
        x = np.full(self.dim, 0.5, _precision())
        missing, idle = [], []
        for number, (name, place, parameter) in enumerate(self._places()):
            # Decided by those before, which have been encoded.
            if not _tables.active(np, self._tables, self._settled(np, x))[number]:
                idle.append(name)
            elif name in values:
                x[place] = _coded(name, parameter, values[name])
            else:
                missing.append(name)
        unknown = [name for name in values if name not in self.names]
        if missing or unknown:
            raise ValueError(f"missing parameters {missing}, unknown parameters {unknown}.")
        self._check_rest(values, idle)
        return x

    def _check_rest(self, values: dict[str, Any], idle: list[str]) -> None:
        """`ValueError` for values that would change nothing."""
        for name in idle:
            if name in values and not is_missing(values[name]):
                raise ValueError(
                    f"parameter {name!r}: {values[name]!r} is of no use, as it is not active with the "
                    "other values: leave it out."
                )
        for name, held in self.constants:
            if name in values and not held.means(values[name]):
                raise ValueError(
                    f"parameter {name!r}: {values[name]!r} is not {held!r}, as it must be."
                )

    def _places(self) -> Iterator[tuple[str, slice, Parameter]]:
        """Each parameter with its coordinates."""
        ends = (*self._tables.starts[1:], self.dim)
        parts = zip(self.parameters, self._tables.starts, ends, strict=True)
        for (name, parameter), start, end in parts:
            yield name, slice(start, end), parameter

    @property
    def _tables(self) -> _tables.Tables:
        parameters = tuple(parameter for _, parameter in self.parameters)
        context = tuple(name in self.context for name, _ in self.parameters)
        return _tables.tabulate(parameters, self.conditions, context)

    def _settled(self, xp: Any, x: Any) -> Any:
        """The point with inactive parameters and the context in their places."""
        return _tables.settled(xp, self._tables, x, self.given)

    def _points(self, unit: Float[Array, "points parameters"]) -> Points:
        return jax.vmap(self._place)(unit)

    def _place(self, unit: Float[Array, " parameters"]) -> Point:
        """Makes a point of a coordinate for each parameter: a choice owns a k-th of its coordinate."""
        return self.project(_tables.placed(jnp, self._tables, unit))

    def _reals(self, x: Point) -> Point:
        """User units of the real coordinates; the others hold nothing of use."""
        tables, largest = self._tables, np.finfo(x.dtype).max
        low, high, least, most = np.clip(tables.bounds, -largest, largest)
        value: Point = low.astype(x.dtype) * (1 - x) + high.astype(x.dtype) * x
        # exp only where it is meant: elsewhere it may overflow and spoil the derivative.
        power = jnp.exp(jnp.where(tables.log, value, jnp.zeros_like(value)))
        value = jnp.where(tables.log, power, value)
        return jnp.clip(value, *_tables.inside(least, most, x.dtype))

    # ------------------------------------------------------------ what may be asked

    @property
    def _everywhere(self) -> "Space":
        """The space without arrays, for the meaning of points anywhere."""
        return _with(self, given=None, constraint=None)

    def must_be_given(self) -> None:
        """Checks that a context has been given, which is a `ValueError` otherwise."""
        require(
            not self.context or self.given is not None,
            f"parameters {list(self.context)} are context, which is given with each question: take a "
            "Desk, and ask(context={...}).",
        )

    def _drawn(self, key: Key) -> Point:
        """A draw that is allowed or, after many in vain, an example."""
        held = self.constraint
        assert held is not None
        pick_key, key = jr.split(key)
        first = held.examples[jr.randint(pick_key, (), 0, constraint.EXAMPLES)]
        data = unwrap(key)

        def look(state: tuple[Count, Point, Flag]) -> tuple[Count, Point, Flag]:
            tries, x, _ = state
            # By its data: JAX's check for reused keys takes a loop for a second use.
            unit = Cube(len(self.parameters)).sample(
                jr.fold_in(wrap(data, key), tries), held.draws(2)
            )
            points = self._points(unit)
            allowed = jax.vmap(self.allows)(points)
            found = jnp.any(allowed)
            return tries + 1, jnp.where(found, points[jnp.argmax(allowed)], x), found

        start = jnp.zeros((), int), first, jnp.zeros((), bool)
        return jax.lax.while_loop(lambda s: ~s[2] & (s[0] < _TRIES), look, start)[1]

    def _examples(self, among: str) -> tuple[Points, float]:
        """Points that `where` allows, and which share of draws they are."""
        held = self.constraint
        assert held is not None

        def draw(generator: np.random.Generator, count: int) -> np.ndarray:
            unit = generator.random((count, len(self.parameters)))
            return np.stack([self._placed_on_host(row) for row in unit.astype(_precision())])

        found, share = constraint.examples(draw, lambda X: self._asked(held, X), among)
        return jnp.asarray(found), share

    def _placed_on_host(self, unit: np.ndarray) -> np.ndarray:
        tables = self._tables
        return _tables.snap(np, tables, self._settled(np, _tables.placed(np, tables, unit)))

    def _asked(self, held: Constraint, X: np.ndarray) -> np.ndarray:
        """Whether each of the points of the space may be asked, decided on the host."""
        everywhere = self._everywhere
        if held.compiled:
            with jax.ensure_compile_time_eval():
                return np.asarray(_compiled_answers(held.predicate, everywhere, jnp.asarray(X)))
        return constraint.answers(held.predicate, everywhere.decode, X)


@eqx.filter_jit
def _compiled_answers(predicate: Any, space: Space, X: Points) -> Bool[Array, " points"]:
    return jax.vmap(lambda x: jnp.asarray(predicate(space.unpack(x))))(X)


def _with(module: Any, **fields: Any) -> Any:
    """A copy of a module with other arrays in some fields."""
    names = tuple(fields)
    at = lambda m: tuple(getattr(m, name) for name in names)  # noqa: E731
    return eqx.tree_at(at, module, tuple(fields.values()), is_leaf=lambda leaf: leaf is None)


def _precision() -> np.dtype:
    return jax.dtypes.canonicalize_dtype(float)


def _coded(name: str, parameter: Parameter, value: Any) -> list[float]:
    try:
        return parameter.encode(value)
    except ValueError as error:
        raise ValueError(f"parameter {name!r}: {error}.") from None


def _by_name(values: Any) -> dict[str, Any]:
    """A row of a table, such as a Series of pandas, is a mapping too."""
    if not hasattr(values, "keys"):
        raise ValueError(
            f"values must be a dictionary of parameters by name, got {values!r:.80}; `decode` is for "
            "points."
        )
    return dict(values)


def _checked(name: str, given: object) -> Parameter:
    """The parameter that was given, by itself or in a role."""
    parameter = given.parameter if isinstance(given, Conditional | Context) else given
    if not isinstance(parameter, Parameter):
        raise ValueError(
            f"parameter {name!r} is {given!r}, expected Real, Integer, Categorical or Ordinal, alone, "
            "with .when(...) or in Context(...); or a number, string, truth value or None that stays."
        )
    if isinstance(given, Conditional) and not all(
        values for _, values in given.conditions or [("", ())]
    ):
        raise ValueError(f"parameter {name!r}: when needs a condition, such as when(model='svm').")
    if problem := parameter.problem():
        raise ValueError(f"parameter {name!r}: {problem}.")
    return parameter


def _conditions(parameters: dict[str, Parameter], parts: dict[str, object]) -> _tables.Conditions:
    """For every parameter, the numbers of its parents and the cells of each that make it active."""
    return tuple(
        tuple(
            _condition(name, parent, parameters, values)
            for parent, values in (part.conditions if isinstance(part, Conditional) else ())
        )
        for name, part in parts.items()
    )


def _condition(
    name: str, parent: str, parameters: dict[str, Parameter], values: tuple[Any, ...]
) -> tuple[int, tuple[int, ...]]:
    """The number of a parent, and its cells for the values."""
    names = list(parameters)
    before = names[: names.index(name)]
    if parent not in before:
        raise ValueError(
            f"parameter {name!r} depends on {parent!r}, which must be a parameter that stands before it, "
            f"among {before}."
        )
    whole = parameters[parent]
    if isinstance(whole, Real):
        raise ValueError(
            f"parameter {name!r} depends on {parent!r}, a Real: give conditions on choices or integers."
        )
    try:
        return before.index(parent), tuple(whole.cell(value) for value in values)
    except ValueError as error:
        raise ValueError(f"parameter {name!r} depends on {parent!r}: {error}.") from None
