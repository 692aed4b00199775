"""The process of a prefill rank: NIXL serves its memory; we only answer questions about it."""

from __future__ import annotations

import base64
import sys
from typing import Any

from kvfast.agent import open_agent

from .pattern import Bytes, pattern
from .process import Message, converse


def register(agent: Any, memory: Bytes) -> Any:
    """Register an array with an agent; return what ``deregister_memory`` takes."""
    return agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")


class Prefill:
    """A rank's agent, memory and received notifications."""

    def __init__(self, name: str, rank: int, blocks: int, block_bytes: int) -> None:
        self.agent: Any = open_agent(name)
        self.memory = pattern(rank, range(blocks), block_bytes)
        self._registered = register(self.agent, self.memory)
        self._received: dict[str, list[str]] = {}

    def introduce(self) -> Message:
        """Say what an initiator must know."""
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": self.memory.ctypes.data}

    def answer(self, question: Message) -> Message:
        """Answer ``{"ask": "memory", ...}`` or ``{"ask": "notifs"}``."""
        if question["ask"] == "memory":
            held = self.memory[question["block"] : question["block"] + question["n_blocks"]]
            return {"memory": base64.b64encode(held.tobytes()).decode()}
        for sender, messages in self.agent.get_new_notifs().items():
            name = sender.decode() if isinstance(sender, bytes) else sender
            self._received.setdefault(name, []).extend(base64.b64encode(m).decode() for m in messages)
        return {"notifs": self._received}


def main(parent: str, name: str, rank: str, blocks: str, block_bytes: str) -> None:
    """Serve until the parent closes the pipe."""
    with converse(int(parent)) as parent_says:
        prefill = Prefill(name, int(rank), int(blocks), int(block_bytes))
        parent_says.send(prefill.introduce())
        for question in parent_says:
            parent_says.send(prefill.answer(question))


if __name__ == "__main__":
    main(*sys.argv[1:])
