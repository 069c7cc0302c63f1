"""A federated method on machines of their own: the owners' side, the server's, what they exchange.

    request = coordinator.request()        the broadcast of a round, or an invitation to join
    reply = owner.answer(request)          choose → evaluate → learn, then the next message
    coordinator.hear(reply)                refuses what cannot be used, and says why
    coordinator.close()                    who was not heard is absent from the next round

Whatever carries requests and replies, such as `jaxbo.flower`, needs no more than this. Both sides are
made of the functions that `run` composes: with one key for all, owners query what `run` does with it.
Both keep what they know in a file that is written whole or not at all, so that either may be killed at
any time: an owner loses the evaluation in flight, the server what it has heard in the open round, for
which it asks again. Every request may be sent again.
"""

from jaxbo.federation.coordinator import Coordinator
from jaxbo.federation.owner import Observations, Owner, OwnerError, observations
from jaxbo.federation.wire import RefusedError, Reply, Request

__all__ = [
    "Coordinator",
    "Observations",
    "Owner",
    "OwnerError",
    "RefusedError",
    "Reply",
    "Request",
    "observations",
]
