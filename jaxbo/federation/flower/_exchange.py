"""A round of the server on Flower: a request to all owners there are, and answers until a deadline."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from jaxtyping import Bool

from jaxbo.federation import RefusedError
from jaxbo.federation.coordinator import Coordinator
from jaxbo.federation.flower._records import of_request, size, to_reply
from jaxbo.privacy.ledger import Ledger, loss_so_far
from jaxbo.privacy.mechanism import Mechanism

#: Seconds between two looks at who is there and has answered, or less: a round has some looks.
PAUSE, LOOKS = 1.0, 4
#: The last part of each pause in which no answer is asked for: one that takes long delays nothing else.
QUIET = 0.25
#: The most seconds of an exchange in which nothing is evaluated: owners ask every few seconds.
LATER = 60.0
#: Where a round ends with the last answer, a pause is this part of what has passed, and no shorter.
SHARE, SHORTEST = 0.1, 0.25

log = logging.getLogger("flwr")


class NobodyError(RuntimeError):
    """Nobody answered. Its text is enough for a person: no traceback is logged with it."""


class _Plainly(logging.Filter):
    """Flower logs every error that ends a run with its traceback: this error is logged without."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NobodyError):
            record.msg, record.args, record.exc_info = str(error), (), None
        return True


PLAINLY = _Plainly()


def wait(grid: Grid, nodes: int, deadline: float) -> None:
    """Waits until there are so many nodes, or until the deadline has passed."""
    end = time.monotonic() + deadline
    while len(list(grid.get_node_ids())) < nodes and time.monotonic() < end:
        time.sleep(SHORTEST)


def round_name(round: int) -> str:
    """A round's name in all logs: they are counted from 1."""
    return "the invitation" if round < 0 else f"round {round + 1}"


def exchange(coordinator: Coordinator, grid: Grid, deadline: float) -> None:
    """A round with all owners there are, or a stage of it. The log says who was heard, and its cost."""
    start, round, before = time.monotonic(), coordinator.round, coordinator.ledger
    stage = coordinator.stage
    name = round_name(round)
    if stage:
        name, deadline = f"stage {stage + 1} after {name}", min(deadline, LATER)
    asking = Asking(grid, _contents(coordinator), round, deadline)
    received, refused = [], 0
    for node, answer in asking.answers(punctual=before is not None and not stage):
        try:
            coordinator.hear(to_reply(answer), _name(node))
        except RefusedError as error:
            refused += 1
            # On one line: whoever answers may have written it.
            log.warning("%s: %.300r", name, str(error))
        else:
            received.append(size(answer.content))
    if not received and before is None:
        raise NobodyError(_nobody(name, refused, deadline))
    late = time.monotonic() - start >= deadline
    heard = coordinator.close()
    log.info(
        "%s: %d of %d owners in %.1f s, %d bytes sent and %d received%s%s%s",
        name if stage else "joined" if round < 0 else f"{name} of {coordinator.rounds}",
        heard.sum(),
        heard.size,
        time.monotonic() - start,
        asking.bytes,
        sum(received),
        "" if heard.all() else f"; absent: {np.flatnonzero(~heard).tolist()}",
        f"; {refused} refused" if refused else "",
        _loss(coordinator.ledger),
    )
    if late and not heard.all():
        log.warning("%s", _missing(heard, name, deadline))
    _announce(before, coordinator.ledger, coordinator.algorithm.released(coordinator.round))


def _contents(coordinator: Coordinator) -> Callable[[int], RecordDict | None]:
    """The request for each node. None for a node that can be of no use."""
    if not coordinator.personal:
        same = of_request(coordinator.request())
        return lambda node: same
    agents = coordinator.senders

    def own(node: int) -> RecordDict | None:
        agent = agents.get(_name(node))
        return None if agent is None else of_request(coordinator.request(agent))

    return own


def _name(node: int) -> str:
    return f"node {node}"


def _nobody(name: str, refused: int, deadline: float) -> str:
    what = f"the deadline of {deadline:g} s passed in {name}, and nobody answered"
    if refused:
        what = f"none of the {refused} answers in {name} could be used"
    return (
        f"{what}: it stays open.\n"
        "Look at the owners' logs; where evaluations take longer, give a longer deadline. The same "
        "`flwr run` goes on from here."
    )


def _missing(heard: Bool[np.ndarray, " agents"], name: str, deadline: float) -> str:
    return (
        f"the deadline of {deadline:g} s passed in {name} without owners "
        f"{np.flatnonzero(~heard).tolist()}, who are absent from the next broadcast.\n"
        "They go on when they are back: see their logs. Where evaluations take longer, give a longer "
        "deadline."
    )


def _loss(ledger: Ledger | None) -> str:
    return "" if ledger is None else f"; {loss_so_far(ledger)}"


def _announce(before: Ledger | None, after: Ledger | None, release: Mechanism | None) -> None:
    """The log says so when the budget pays for no other release like the last."""
    if before is None or after is None or release is None or after.budget == math.inf:
        return
    if before.affords(release) and not after.affords(release):
        log.info(
            "the budget is spent: of epsilon %g at delta %g, what is left pays for no other release.",
            after.budget,
            after.delta,
        )


class Asking:
    """The nodes that have been asked in a round, and the messages that have no answer yet."""

    def __init__(
        self,
        grid: Grid,
        content: Callable[[int], RecordDict | None],
        round: int,
        deadline: float,
    ):
        self.grid, self.content, self.round, self.deadline = grid, content, round, deadline
        self.asked: set[int] = set()
        self.bytes = 0
        self.waiting: dict[str, int] = {}

    def answers(self, punctual: bool) -> Iterator[tuple[int, Any]]:
        """Nodes and their answers as they come. An answer that Flower cannot read is an exception.

        If this is `punctual`, it takes until the deadline, and looks begin at instants that a clock
        gives. So neither the end nor the requests tell how long it took to hear other nodes.
        Otherwise it ends when all nodes that were asked have answered.
        """
        start = time.monotonic()
        for look, until in (_punctual if punctual else _eager)(self.deadline):
            _sleep_until(start + look)
            self._push(self.deadline - look)
            yield from self._heard(start + until)
            if self.asked and not (self.waiting or punctual):
                return
        _sleep_until(start + self.deadline)

    def _push(self, left: float) -> None:
        """Asks the nodes that have not been, all at once; in `left` seconds it is too late."""
        now = time.time()
        nodes = sorted(set(self.grid.get_node_ids()) - self.asked)
        contents = {node: content for node in nodes if (content := self.content(node)) is not None}
        messages = [
            Message(content, node, MessageType.TRAIN, ttl=left, group_id=str(self.round))
            for node, content in contents.items()
        ]
        for message in messages:
            message.metadata.created_at = now  # the same for all: each is told it
        names = self.grid.push_messages(messages) if messages else []
        pushed = {name: node for name, node in zip(names, contents, strict=False) if name}
        self.asked |= set(pushed.values())
        self.bytes += sum(size(contents[node]) for node in pushed.values())
        self.waiting |= pushed

    def _heard(self, until: float) -> Iterator[tuple[int, Any]]:
        """The answers that have come, in turn, as far as there is time; they leave `waiting`.

        Each is asked for by itself: Flower reads all answers that it is asked for, or none.
        """
        for name, node in list(self.waiting.items()):
            if time.monotonic() >= until:
                return
            answers = pulled(self.grid, name)
            del self.waiting[name]
            if not answers:
                self.waiting[name] = node  # behind the others
            for answer in answers:
                yield node, answer


def _punctual(deadline: float) -> Iterator[tuple[float, float]]:
    """Seconds since a round began: of each look, and until when answers are asked for in it."""
    looks = max(LOOKS, math.ceil(deadline / PAUSE))
    pause = deadline / looks
    for look in range(looks):
        yield look * pause, (look + 1 - QUIET) * pause


def _eager(deadline: float) -> Iterator[tuple[float, float]]:
    """The same, with short pauses at first, for answers that come early."""
    look = 0.0
    while look < deadline:
        yield look, deadline
        look += min(max(SHARE * look, SHORTEST), PAUSE)


def pulled(grid: Grid, name: str) -> list[Any]:
    """The answer to a message, if it has come."""
    try:
        return list(grid.pull_messages([name]))
    except httpx.HTTPStatusError:  # of this message; of more, the next look at who is there tells
        return []
    except (httpx.HTTPError, OSError):  # the network's, and no owner's
        raise
    except Exception as error:
        return [error]


def _sleep_until(instant: float) -> None:
    left = instant - time.monotonic()
    if left > 0:
        time.sleep(left)
