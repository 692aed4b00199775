"""What the demo's agents tell each other through NIXL's notifications.

Most are in the format of `kvfast.notifs`. The one that is not tells a rank where to write: every
engine has a format of its own for that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvfast import notifs

_REGISTRATION: Final = b"WRITE "
_FINISHED: Final = ":finished"  # a request id may contain colons


@dataclass(frozen=True, slots=True)
class Registration:
    """Decode asks a rank to write its share of a request.

    Parameters
    ----------
    content : list of int
        What to write: numbers that `pattern` makes bytes of.
    blocks : list of int
        Where to: decode's blocks, as many.
    producers : int
        How many ranks write to the request.
    """

    req_id: str
    content: list[int]
    blocks: list[int]
    producers: int

    def encode(self) -> bytes:
        """Return it as a notification."""
        return _REGISTRATION + json.dumps(asdict(self)).encode()


def decode_registration(message: bytes) -> Registration | None:
    """Return the registration that a notification is; None if it is another one."""
    if not message.startswith(_REGISTRATION):
        return None
    return Registration(**json.loads(message[len(_REGISTRATION) :]))


def new_notifs(agent: Any) -> dict[str, list[bytes]]:
    """Return what an agent was notified of since the last call, by sender."""
    # NIXL up to 0.10 gives names as bytes.
    received = agent.get_new_notifs().items()
    return {name.decode() if isinstance(name, bytes) else name: messages for name, messages in received}


def read_message(req_id: str) -> bytes:
    """Build what NIXL tells a rank when one READ from it has ended."""
    return notifs.consumed(req_id, 1)


def finished_message(req_id: str) -> bytes:
    """Build what the Receiver tells each rank of a request when that is finished as a whole."""
    return notifs.consumed(req_id + _FINISHED, 1)


def sort_told(messages: list[bytes]) -> dict[str, list[str]]:
    """Return what a rank was told: ids under ``"read"`` and ``"finished"``, the rest under ``"else"``."""
    told: dict[str, list[str]] = {"read": [], "finished": [], "else": []}
    for message in messages:
        parsed = notifs.parse(message)
        if not isinstance(parsed, notifs.Consumed):
            told["else"].append(repr(message))
        elif parsed.req_id.endswith(_FINISHED):
            told["finished"].append(parsed.req_id.removesuffix(_FINISHED))
        else:
            told["read"].append(parsed.req_id)
    return {kind: sorted(req_ids) for kind, req_ids in told.items()}
