"""A compiled run, some rows at a time: it shows how far it is, and survives a kill.

    begin    the state and empty tables, or those of the file
    rows     the program of `run`, from one row to another: both are numbers that it is given
    end      the result of `run`

The step from row to row is the same whatever the segments are, so a run that goes on has the same bits.
"""

import functools
import hashlib
import time
from collections.abc import Sequence
from os import PathLike
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxbo import _version
from jaxbo._check import require
from jaxbo._direction import upward
from jaxbo._keys import unwrap, wrap
from jaxbo.algos.base.keys import RunKeys, run_keys
from jaxbo.objectives.families import AbstractObjective
from jaxbo.runs import _archive
from jaxbo.runs._archive import DamagedError, OtherRunError
from jaxbo.runs._ending import Ending
from jaxbo.runs._identity import check_same, identity
from jaxbo.runs._lock import Hold
from jaxbo.runs._plan import Plan, State, Tables
from jaxbo.runs._progress import Progress
from jaxbo.types import Count, Key, as_pytree

#: The kind of the file, and the number of its layout.
KIND, FORMAT = "a compiled run", 1
#: Seconds between two looks at a run: a bar that moves, and an interrupt that is heard.
SEGMENT = 1.0
#: A segment is at most so many times as long as the one before, whose time may have been short by chance.
GROWTH = 4
#: Seconds between two saves, and times as long as a save takes: a kill loses no more than that.
BETWEEN_SAVES, PATIENCE = 10.0, 10


def run_in_segments(
    plan: Plan,
    key: Key,
    state: PyTree | None,
    checkpoint: str | PathLike | None,
    progress: bool,
) -> tuple[PyTree, Any]:
    """The result of `run`, with fewer rows if it was interrupted."""
    require(
        not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((plan, key, state))),
        "progress and checkpoint are for a run by itself: leave them out under jit and vmap.",
    )
    keys, total = run_keys(key), plan.initial + plan.rounds
    saved = None if checkpoint is None else _File(checkpoint, plan, key, state)
    row, carry = 0, _begin(plan, keys, state)
    ending = Ending(None, None)
    try:
        if saved is not None:
            row, carry = saved.resumed(carry)
        with ending, Progress(total, "round", progress) as bar:
            if row:
                bar.advance(row, **_facts(plan, row, *carry))
            size = 1
            while row < total and not ending.now():
                last, began = min(row + size, total), time.monotonic()
                between = jnp.asarray(row), jnp.asarray(last)
                carry = jax.block_until_ready(_rows((plan, keys, *between), carry))
                took = max(time.monotonic() - began, 1e-6)
                bar.advance(last - row, **_facts(plan, last, *carry))
                size = max(1, min(int(size * SEGMENT / took), GROWTH * size))
                row = last
                if saved is not None:
                    saved.save(row, carry, due=row == total or ending.now())
    finally:
        if saved is not None:
            saved.hold.release()
    return _end(plan, row, (carry[0], _cut(plan, row, carry[1])))


@eqx.filter_jit
def _begin(plan: Plan, keys: RunKeys, state: PyTree | None) -> tuple[State, Tables]:
    begun = plan.start(keys.init, state)
    return _finite(plan, begun), plan.loop(keys, begun)[0]


# A state is given up for the next one, which takes its memory: a population's is held once.
@functools.partial(eqx.filter_jit, donate="all-except-first")
def _rows(
    known: tuple[Plan, RunKeys, Count, Count], carry: tuple[State, Tables]
) -> tuple[State, Tables]:
    plan, keys, first, last = known
    carry = _as_rounds_have_it(plan, carry[0]), carry[1]
    _, body = plan.loop(keys, carry[0])
    state, tables = jax.lax.fori_loop(first, last, body, carry)
    return _finite(plan, state), tables


def _nothing(plan: Plan, dtype: Any) -> float:
    """The best value of an agent that has none, between segments: `jax_debug_infs` stops for infinity."""
    return float(upward(plan.direction, jnp.finfo(dtype).min))


def _finite(plan: Plan, state: State) -> State:
    begun, best = state
    return begun, jnp.where(jnp.isfinite(best), best, _nothing(plan, best.dtype))


def _as_rounds_have_it(plan: Plan, state: State) -> State:
    begun, best = state
    infinite = jnp.full_like(best, upward(plan.direction, -jnp.inf))
    return begun, jnp.where(best == _nothing(plan, best.dtype), infinite, best)


@eqx.filter_jit
def _retold(plan: Plan, rows: Count, state: PyTree, tables: Tables) -> PyTree:
    return plan.retell(rows, state, tables)


@eqx.filter_jit
def _end(plan: Plan, count: int, carry: tuple[State, Tables]) -> tuple[PyTree, Any]:
    return plan.end(count, *carry)


def _cut(plan: Plan, row: int, tables: Tables) -> Tables:
    """The tables after `row` rows."""
    if row == plan.initial + plan.rounds:
        return tables
    lengths = plan.recorded(row)
    return tuple(
        jax.tree.map(lambda leaf, n=length: leaf[:n], table)
        for table, length in zip(tables, lengths, strict=True)
    )  # type: ignore[return-value]


def _facts(plan: Plan, row: int, state: State, tables: Tables) -> dict[str, Any]:
    """The numbers that were recorded of the last round, or the best value of all."""
    _, recorded = plan.recorded(row)
    if plan.record is None or not recorded:
        best = np.asarray(state[1])
        best = best[best != _nothing(plan, best.dtype)]
        if not best.size:
            return {}
        return {"best": best.min() if plan.direction == "minimize" else best.max()}
    leaves = jax.tree_util.tree_leaves_with_path(tables[1])
    return {
        jax.tree_util.keystr(path).strip(".[]'") or "record": np.asarray(leaf[recorded - 1])
        for path, leaf in leaves
        if leaf.ndim == 1
    }


class _File:
    """State and records of a run between two segments, in a NumPy archive."""

    def __init__(self, path: str | PathLike, plan: Plan, key: Key, state: PyTree | None):
        self.path, self.plan = _archive.located(path), plan
        self.hold = Hold(self.path)
        objective = plan.objective if isinstance(plan.objective, AbstractObjective) else None
        self.identity = identity(
            version=_version.__version__,
            algorithm=plan.algorithm,
            objective=objective,
            key=key,
            initial=plan.initial,
            state=state,
            every=plan.every,
            record=None if plan.record is None else as_pytree(plan.record),
            direction=plan.direction,
            precision=jnp.zeros(()),
        )
        self._saved, self._took = time.monotonic(), 0.0

    def resumed(self, carry: tuple[State, Tables]) -> tuple[int, tuple[State, Tables]]:
        """The row to go on from, with its state and tables; `carry` has the state and tables of a new
        run.

        `CheckpointError` if the file is in use, damaged or of another run.
        """
        self.hold.take()
        if not self.path.exists():
            return 0, carry
        manifest, arrays = _archive.read(self.path)
        _archive.check_format(self.path, manifest, KIND, FORMAT)
        try:
            row, identity, present = int(manifest["row"]), manifest["identity"], manifest["present"]
            found = [arrays[f"leaf_{i}"] for i in range(len(arrays))]
        except (KeyError, TypeError, ValueError) as error:
            raise _archive.damaged(self.path, error) from error
        check_same(self.path, self.identity, identity)
        total = self.plan.initial + self.plan.rounds
        require(
            row <= total,
            f"the checkpoint has {row} rows already, the run asks for {total}: give at least as many "
            "rounds as before.",
        )
        if present != self._present(row):
            raise OtherRunError(
                f"{self.path} belongs to a run with another present; give the same rows as before to "
                "continue it"
            )
        return row, self._filled(row, carry, found)

    def _filled(
        self, row: int, carry: tuple[State, Tables], found: list[np.ndarray]
    ) -> tuple[State, Tables]:
        """`carry` with the arrays of the file, laid out in the same way.

        If the method has another capacity, its state is told again the observations in the tables.
        """
        cut = carry[0], _cut(self.plan, row, carry[1])
        if _shapes(found) == _shapes(jax.tree.leaves(unwrap(cut))):
            return _filled(carry, found)
        (state, best), tables = carry
        rest = jax.tree.leaves(unwrap((best, cut[1])))
        found = found[max(len(found) - len(rest), 0) :]
        if _shapes(found) != _shapes(rest):
            raise DamagedError(
                f"{self.path} has arrays of other sizes than this run's; restore it from a copy, or "
                "remove it to start again."
            )
        self._check_recorded()
        best, tables = _filled((best, tables), found)
        return (_retold(self.plan, jnp.asarray(row), state, tables), best), tables

    def _check_recorded(self) -> None:
        """`OtherRunError` if a state of another capacity cannot be told again the observations."""
        if self.plan.record is not None or self.plan.every != 1:
            raise OtherRunError(
                f"{self.path} belongs to a run of a method with another capacity, and has not all rounds "
                "to tell them again: only a run without record and with every=1 goes on with another "
                "one. Give the same capacity as before to continue it"
            )

    def save(self, row: int, carry: tuple[State, Tables], due: bool) -> None:
        """Replaces the file in one step, unless the last time was a moment ago and it is not `due`."""
        began = time.monotonic()
        if not due and began - self._saved < max(BETWEEN_SAVES, PATIENCE * self._took):
            return
        self.hold.check()
        data = unwrap((carry[0], _cut(self.plan, row, carry[1])))
        leaves = jax.tree.leaves(data)
        require(
            all(leaf.is_fully_addressable for leaf in leaves),
            "checkpoint is for a run in one process; here the state is spread over several.",
        )
        manifest = {
            "kind": KIND,
            "format": FORMAT,
            "identity": self.identity,
            "row": row,
            "present": self._present(row),
        }
        arrays = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        _archive.write(self.path, manifest, arrays)
        self._saved, self._took = time.monotonic(), time.monotonic() - began

    def _present(self, row: int) -> str | None:
        """A digest of who was present in the first rows."""
        if self.plan.present is None:
            return None
        rows = np.asarray(self.plan.present)[: max(row - self.plan.initial, 0)]
        return hashlib.sha256(rows.tobytes()).hexdigest()


def _shapes(leaves: Sequence[jax.Array | np.ndarray]) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in leaves]


def _filled(tree: Any, found: list[np.ndarray]) -> Any:
    """The same tree with the arrays of a file."""
    leaves, structure = jax.tree.flatten(unwrap(tree))
    filled = [_laid_out(leaf, one) for leaf, one in zip(leaves, found, strict=True)]
    return wrap(jax.tree.unflatten(structure, filled), tree)


def _laid_out(like: jax.Array, found: np.ndarray) -> jax.Array:
    """An array of the file, on the devices of `like`; a table is filled up with its empty rows."""
    whole = found
    if found.shape != like.shape:
        whole = np.zeros(like.shape, like.dtype)
        whole[: len(found)] = found
    return jax.device_put(whole.astype(like.dtype, copy=False), like.sharding, may_alias=False)
