"""Workers who evaluate the queries of a desk, and who are given the next query as they end."""

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxbo.domains.base import AbstractDomain
from jaxbo.runs._ending import Ending
from jaxbo.runs._evaluate import outcome_of, survives, tries
from jaxbo.runs._executors import Here
from jaxbo.runs._exhausted import nothing_left
from jaxbo.runs._flight import Flight
from jaxbo.runs._objective import COMPILED, USUAL, arguments_of
from jaxbo.runs._progress import Progress
from jaxbo.types import Count, Key, Point

if TYPE_CHECKING:
    from jaxbo.runs.desk import Desk, Ticket
else:  # annotations are checked at run time
    Desk = Ticket = Any


class Crew:
    """Evaluates the queries of a desk."""

    def __init__(
        self,
        desk: Desk,
        objective: Any,
        flight: Flight,
        catch: Any,
        ending: Ending,
        bar: Progress,
    ):
        self.desk, self.objective, self.catch = desk, objective, catch
        self.flight, self.ending, self.bar = flight, ending, bar
        self.count = arguments_of(objective, USUAL)
        workers = 1 if isinstance(flight.executor, Here) else desk.algorithm.targets
        self.idle = list(range(workers))
        self.failed: list[BaseException] = []
        self.fatal: list[BaseException] = []

    def work(self, total: int) -> None:
        """Until `total` results are in. Before an error is raised, evaluations under way are kept."""
        try:
            if self.desk.answered:
                self._look(self.desk.answered)
            self._start(total)
            while outcomes := self.flight.ended(self._ends):
                for (worker, ticket), outcome in outcomes:
                    self._end(outcome, worker, ticket)
                self._start(total)
        finally:
            self.flight.cancel()
        if self.fatal:
            raise self.fatal[0]
        if self._in_vain(total):
            self.desk._forget()  # a mistake in the objective, not bad luck: it may be mended
            raise self.failed[0]

    def _ends(self) -> bool:
        return bool(self.fatal) or self.ending.now()

    def _start(self, total: int) -> None:
        """Gives the idle something to do, unless the run is to end."""
        try:
            while self.idle and self._wanted(total):
                self.flight.must_have_a_worker()
                if not self.flight.free:
                    break
                worker, ticket = self.idle.pop(0), self.desk.ask()
                self._submit(worker, ticket)
        except Exception as error:  # of a full disk, or a pool that takes nothing more
            self.fatal.append(error)

    def _submit(self, worker: int, ticket: Ticket) -> None:
        name, x = (worker, ticket), ticket.x
        if self.count == COMPILED:
            desk = self.desk
            point = jnp.asarray(desk._point(ticket.number))
            arguments = desk.noise_key(ticket.number), jnp.asarray(worker), point
            self.flight.submit(name, _compiled, desk.algorithm.domain, self.objective, *arguments)
        else:
            self.flight.submit(name, self.objective, *(worker, x)[-self.count :])

    def _wanted(self, total: int) -> bool:
        ending = self._ends() or self._in_vain(total)
        return not ending and self.desk.answered + len(self.flight.running) < total

    def _in_vain(self, total: int) -> bool:
        """Whether all results of the desk's own queries are failures, and enough of them."""
        desk = self.desk
        least = tries(desk.initial, desk.told - desk.answered, total)
        least = max(least, min(desk.algorithm.targets, total))
        failed = desk.own(failure.row for failure in desk.failures)
        return len(self.failed) > 0 and failed == desk.answered >= least

    def _end(self, outcome: Future, worker: int, ticket: Ticket) -> None:
        numbers, error = outcome_of(outcome, self.desk.algorithm.outcomes)
        if error is not None:
            if self.ending.interrupted and isinstance(error, KeyboardInterrupt):
                return  # a worker has heard of it, too: the query stays open
            error.add_note(f"worker {worker} evaluating query {ticket.number} at x = {ticket.x}")
            if not survives(error, self.catch):
                self.fatal.append(error)
                return
        try:
            if error is None:
                self.desk._tell(ticket.number, numbers)
            else:
                self.desk.fail(ticket.number, repr(error))
                self.failed.append(error)
        except Exception as unsaved:
            self.fatal.append(unsaved)
            return
        self.idle.append(worker)
        try:
            self._look()
        except Exception as error:  # of a rule; what is under way is kept
            self.fatal.append(error)

    def _look(self, new: int = 1) -> None:
        """Shows the results so far, of which so many are new, and ends the run if they are enough."""
        known = self.desk.results
        best = np.where(known.feasible, known.values, np.nan)
        self.bar.advance_to(best, self.desk.direction, new)
        self.ending.after(lambda: self.desk, self._left)

    def _left(self) -> str | None:
        known = self.desk.results
        queries, values = np.asarray(known.queries), known.values
        return nothing_left(self.desk.algorithm.domain, queries[:, None], values[:, None])


@eqx.filter_jit
def _compiled(domain: AbstractDomain, objective: Any, key: Key, worker: Count, x: Point) -> Any:
    """A value, or a dictionary with outcomes; NaN where not finite, or x is outside of the domain."""
    inside = domain.contains(x)

    def checked(value: jax.Array) -> jax.Array:
        return jnp.where(jnp.isfinite(value) & inside, value, jnp.nan)

    return jax.tree.map(checked, objective(key, worker, x))
