"""What the supervisor says, without waiting for it: a loop that waits would hide what it is here to show."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from kvfast.demo.process import Conversation, Message


class Mailbox:
    """Messages from the supervisor, taken in by a thread of its own."""

    def __init__(self, parent: Conversation) -> None:
        self._parent = parent
        self._arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.closed = False
        threading.Thread(target=self._read, daemon=True, name="mailbox").start()

    def send(self, message: Message) -> None:
        """Send a message to the supervisor."""
        self._parent.send(message)

    def take(self) -> Iterator[Message]:
        """Return what has come since the last call."""
        while True:
            try:
                yield self._arrived.get_nowait()
            except queue.Empty:
                return

    def wait(self, timeout_s: float) -> Message:
        """Return the next message; raise queue.Empty if none comes in time."""
        return self._arrived.get(timeout=timeout_s)

    def _read(self) -> None:
        for message in self._parent:
            self._arrived.put(message)
        self.closed = True
