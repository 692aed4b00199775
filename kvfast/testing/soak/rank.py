"""What the ranks of both soaks have in common: an agent, a ring of blocks, and decode at the other end."""

from __future__ import annotations

import base64
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from kvfast.agent import open_agent
from kvfast.demo.prefill import register
from kvfast.demo.process import Conversation, Message, converse

from .imports import leave_torch_out
from .mailbox import Mailbox
from .network import enter_namespace
from .ring import RankMemory, encode_freed
from .settings import SoakSettings, settings_from

logger = logging.getLogger(__name__)

_STEP_S: Final = 0.001
_TALLY_S: Final = 0.5  # a rank that is killed has told what it had counted so long ago
_FOR_EVER_S: Final = 1e6


class SoakRank(ABC):
    """A rank's agent and memory.

    Parameters
    ----------
    name : str
        The agent's name.
    key : int
        Of the pattern; no other life of a rank has it.
    column : int
        Which part of decode's memory is this rank's.
    """

    def __init__(self, name: str, key: int, column: int, settings: SoakSettings) -> None:
        self.settings = settings
        self.column = column
        self.agent: Any = open_agent(name)
        self.send_notif = self.agent.send_notif  # past the faults of notifications
        self.ring = RankMemory(key, settings.rank_blocks, settings.block_bytes)
        self._registered = register(self.agent, self.ring.memory)
        self.decode_name = ""
        self.decode_address = 0
        self._decode_metadata = b""
        self.counts = {"finished": 0, "expired": 0, "twice": 0, "reconnects": 0, "unsent": 0}

    def introduce(self) -> Message:
        """Say what decode must know."""
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": self.ring.memory.ctypes.data}

    def meet(self, decode: Message) -> None:
        """Get to know decode."""
        self._decode_metadata = base64.b64decode(decode["metadata"])
        self.decode_address = int(decode["address"])
        name = self.agent.add_remote_agent(self._decode_metadata)
        self.decode_name = text(name)

    def reconnect(self, *, behind: bool = False) -> None:
        """Remove decode from the agent, whatever is in flight, and add it again."""
        if not behind:
            self.counts["reconnects"] += 1
        try:
            self.agent.remove_remote_agent(self.decode_name)
        except Exception as error:
            logger.warning("decode could not be removed: %r", error)
        self.agent.add_remote_agent(self._decode_metadata)

    def free(self, positions: Sequence[int]) -> None:
        """Overwrite blocks that were given back, at once, and tell decode."""
        self.ring.overwrite(positions)
        self.tell(encode_freed(positions))

    def tell(self, message: bytes) -> None:
        """Send decode a message."""
        if not self.decode_name:
            return
        try:
            self.send_notif(self.decode_name, message)
        except Exception:
            # Decode has closed its connection to us: it had removed us. It asks again for what it misses.
            self.counts["unsent"] += 1
            self.reconnect()

    @abstractmethod
    def step(self) -> None:
        """Take notifications, poll, overwrite what is free."""

    @abstractmethod
    def stats(self) -> Message:
        """Return what was counted, ``tracked`` and ``left_handles`` among it."""


def text(name: str | bytes) -> str:
    """Return an agent's name; NIXL gives some as bytes."""
    return name.decode() if isinstance(name, bytes) else name


def serve(kind: type[SoakRank], settings: SoakSettings, parent: Conversation) -> None:
    """Wait for a part to play, and run the rank until the supervisor closes the pipe.

    A process that waits has loaded all it needs: the one that replaces a killed rank is there at once.
    """
    mailbox = Mailbox(parent)
    part = mailbox.wait(_FOR_EVER_S)
    rank = kind(part["name"], part["key"], part["column"], settings)
    parent.send(rank.introduce())
    next_tally = time.monotonic() + _TALLY_S
    while not mailbox.closed:
        for message in mailbox.take():
            if "decode" in message:
                rank.meet(message["decode"])
            elif message["ask"] == "remove-behind":
                rank.reconnect(behind=True)
            else:
                mailbox.send({"stats": rank.stats()})
        rank.step()
        if time.monotonic() >= next_tally:
            next_tally = time.monotonic() + _TALLY_S
            mailbox.send({"tally": rank.stats()})
        time.sleep(_STEP_S)


def run_rank(kind: type[SoakRank], argv: Sequence[str]) -> None:
    """Run the process of a rank: argv is the parent's pid and the settings."""
    parent, settings = argv
    enter_namespace()
    leave_torch_out()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    with converse(int(parent)) as supervisor:
        serve(kind, settings_from(json.loads(settings)), supervisor)
