"""A federated method on machines of their own: the owners' side, the server's, and their exchange.

    request = coordinator.request()        the broadcast of a round, or an invitation to join
    reply = owner.answer(request)          choose → evaluate → learn, then the next message
    coordinator.hear(reply)                refuses what cannot be used, and says why
    coordinator.close()                    who was not heard is absent from the next round

Whatever carries requests and replies, such as `jaxbo.federation.flower`, needs no more than this. Both
sides are made of the functions that `run` composes: with a common key for all, owners ask the queries
of `run`. A process compiles them once, for all its owners and for a server: later rounds trace nothing.
Each keeps its knowledge in a file that is written whole or not at all, so that either may be killed at
any time. An owner then loses the evaluation in flight. The server loses the messages of the open round,
for which it asks again. Every request may be sent again.

The server sees every message, and is trusted with it: docs/explanations/privacy.md, "Who trusts whom".
With `SecureSum` it sees the sum of private messages alone, and owners add the noise (`_stages`, `_masks`,
`jaxbo.privacy.distributed`). Either it passes on the owners' keys as they came, or each owner has a
directory of the others' identities (`public_key`, `_identities`). All then know who takes part.
The rest of this page is about a server without it.

Besides the private sums an observer must learn nothing that depends on who takes part. So with a ledger
every round ends with a release, empty ones too; requests are the same for all owners and name nobody;
refusals are the server's alone; the numbers of rounds and releases are settled before. When a round
ends is up to whoever calls `close`: a clock must say it, not an answer. The rest, such as the server's
log and the traffic, is listed in federation/README.md, "What an observer learns besides the sums".
"""

from jaxbo.federation._owner_memory import Observations, observations
from jaxbo.federation._visit import OwnerError
from jaxbo.federation.coordinator import Coordinator
from jaxbo.federation.owner import Owner, public_key
from jaxbo.federation.wire import RefusedError, Reply, Request
from jaxbo.privacy.distributed import SecureSum

__all__ = [
    "Coordinator",
    "Observations",
    "Owner",
    "OwnerError",
    "RefusedError",
    "Reply",
    "Request",
    "SecureSum",
    "observations",
    "public_key",
]
