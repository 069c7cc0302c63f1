"""A federation on Flower: any federated method as a `ServerApp` and a `ClientApp` (extra `flower`).

    app = flower.client_app(algorithm, objective)                     on every owner's machine
    app = flower.server_app(algorithm, rounds, key)                   on the server's

Flower has the network, encryption and the list of members. `jaxbo.federation` has the messages and the
files. In a round all owners get the broadcast, and each of them sends its next message after it has
evaluated its query. That is a single exchange. With `secure`, three more hide the message.
"""

import logging
from pathlib import Path

from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from jaxbo._check import require, seconds, whole
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.federation import Coordinator, Owner, OwnerError, RefusedError, SecureSum
from jaxbo.federation._sides import Common
from jaxbo.federation.coordinator import releases_of
from jaxbo.federation.flower._exchange import PLAINLY, exchange, wait
from jaxbo.federation.flower._records import of_reply, to_request
from jaxbo.federation.owner import check_owners
from jaxbo.privacy.ledger import Ledger
from jaxbo.runs._evaluate import BlackBox
from jaxbo.types import Key

log = logging.getLogger("flwr")


def client_app(
    algorithm: AbstractFederated,
    objective: BlackBox,
    *,
    key: Key | None = None,
    catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    secure: SecureSum | None = None,
) -> ClientApp:
    """The app of all owners; its arguments are as in `federation.Owner`.

    An owner's SuperNode says who it is and where its file is to be:

        python -m jaxbo.federation.flower.node --node-config 'partition-id=0 folder="/home/owner/jaxbo"' …

    `partition-id` is the agent's number. With `budget=4.0 delta=5e-5` beside it, the owner of a private
    method has a `Ledger` of its own. It then refuses what is beyond, in all federations with this folder.
    With `directory="/home/owner/jaxbo/directory.txt"` the owner of secure sums has all public keys there.
    An error here travels as a single sentence without data; the SuperNode's log has the rest.
    """
    check_owners(algorithm, objective, key, catch, secure)
    app, common = ClientApp(), Common(algorithm)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = context.node_config
        require(
            "partition-id" in config and "folder" in config,
            "start the SuperNode with --node-config 'partition-id=<the agent> folder=\"<where>\"'.",
        )
        agent, folder = config["partition-id"], str(config["folder"])
        whole("partition-id", agent)
        try:
            options = {"key": key, "catch": catch, "secure": secure, "ledger": _ledger(config)}
            options["directory"] = config.get("directory")
            owner = Owner(algorithm, objective, int(agent), folder, **options)
            owner.common = common  # each message has an owner of its own
            reply = owner.answer(to_request(message.content))
        except (OwnerError, RefusedError):
            raise
        except Exception as error:  # whose text would travel
            raise OwnerError(f"{type(error).__name__}: see the owner's log.") from error
        return Message(of_reply(reply), reply_to=message)

    return app


def _ledger(config: UserConfig) -> Ledger | None:
    """The ledger in a SuperNode's configuration. `ValueError` where it is half a ledger."""
    if not {"budget", "delta"} & set(config):
        return None
    require(
        {"budget", "delta"} <= set(config),
        "a ledger in --node-config has two numbers, budget=<epsilon> and delta=<delta>.",
    )
    budget, delta = config["budget"], config["delta"]
    require(
        isinstance(budget, int | float) and isinstance(delta, int | float),
        "budget and delta in --node-config are numbers.",
    )
    return Ledger(float(delta), budget=float(budget))


def server_app(
    algorithm: AbstractFederated,
    rounds: int,
    key: Key,
    *,
    initial: int = 0,
    ledger: Ledger | None = None,
    deadline: float = 3600.0,
    secure: SecureSum | None = None,
) -> ServerApp:
    """The app of the server; its arguments are as in `federation.Coordinator`.

    It waits for as many SuperNodes as there are agents, and then round by round for their answers, each
    time up to `deadline` seconds: who has not answered by then is absent from the next round, and goes
    on when it is back. An owner that comes while a round is open is asked as well. An answer that
    cannot be used is refused with its reason in the log, and counts as absent. If nobody answers, the
    run ends with an error. Started again, it goes on where it was.

    With a `ledger` nothing may tell who takes part. So a round takes `deadline` seconds, however many
    owners have answered: give it as long as an evaluation takes, and some seconds more. The server then
    waits for nobody before the first round, and a round in which nobody answers releases noise and is
    charged.

    With `secure` a round has three more exchanges, in which nothing is evaluated. Each ends with the
    last answer, after a minute at most: owners know anyway who takes part.

    The run's configuration has the absolute path of the server's file. With `secure` it may have that
    of the owners' directory. If it is empty or missing, the server takes any owner's keys:

        [tool.flwr.app.config]
        checkpoint = "/home/server/jaxbo/federation.npz"
        directory = "/home/server/jaxbo/directory.txt"
    """
    releases_of(algorithm, rounds, key, initial, ledger, secure)
    seconds("deadline", deadline)
    log.addFilter(PLAINLY)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        options = {"initial": initial, "ledger": ledger, "secure": secure}
        if config.get("directory"):
            options["directory"] = _path(config, "directory")
        coordinator = Coordinator(algorithm, rounds, key, _path(config, "checkpoint"), **options)
        log.info(
            "a message of %s has %d bytes of numbers",
            type(algorithm).__name__,
            coordinator.declared,
        )
        try:
            if not coordinator.done and ledger is None:
                wait(grid, algorithm.agents, deadline)
            while not coordinator.done:
                exchange(coordinator, grid, deadline)
        finally:
            coordinator.stop()

    return app


def _path(config: UserConfig, name: str) -> Path:
    """A path in a run's configuration. `ValueError` unless it is absolute."""
    path = Path(str(config.get(name, "")))
    require(
        path.is_absolute(),
        f"the run's configuration must have an absolute path as its {name}, got {path}.",
    )
    return path
