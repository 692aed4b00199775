"""The push side of the loop: decode tells every rank where to write, and counts who has.

A rank is known to be dead when a heartbeat to it raises NIXL's disconnect exception, or when its
process is known to have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from kvfast import notifs
from kvfast.notifs import NotifReader
from kvfast.peers import is_disconnect
from kvfast.receive import Receiver

from .engine import Engine, Request, Source
from .evidence import Problems
from .messages import Registration, new_notifs
from .pattern import Bytes

_HEARTBEAT_S: Final = 0.05  # a rank's leases are far longer: this is also how soon a death is seen


class PushEngine(Engine):
    """The loop over a Receiver that is written to; ``agent`` is the one that it was made with."""

    def __init__(
        self,
        agent: Any,
        receiver: Receiver,
        memory: Bytes,
        sources: Iterable[Source],
        requests: Iterable[Request],
        problems: Problems,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(receiver, memory, sources, requests, problems)
        self._agent = agent
        self._reader = NotifReader(receiver.stats)
        self._clock = clock
        self._next_heartbeat = 0.0
        self._writing: dict[str, set[str]] = {}  # by request: who was told and has not said that it ended

    def poll(self) -> None:
        """Take what the ranks say, tell them that we live, and poll once."""
        for rank, notif in self._reader.read(new_notifs(self._agent)):
            if isinstance(notif, notifs.Consumed):
                self._writing.get(notif.req_id, set()).discard(rank)
                self.receiver.notified(notif.req_id, notif.count, peer=rank)
        if self._clock() >= self._next_heartbeat:
            self._next_heartbeat = self._clock() + _HEARTBEAT_S
            self._send_heartbeats()
        super().poll()

    def has_lost(self, source: Source) -> bool:
        """Tell whether a source is known to be dead."""
        return self.receiver.guard.is_dead(source.name)

    def process_ended(self, source: Source) -> None:
        """Hear that the process of a source has ended: it writes no more."""
        self.receiver.peer_lost(source.name)

    def runs(self, request: Request, source: Source) -> bool:
        """Tell whether a source was told of a request, and has not said that it ended."""
        return source.name in self._writing[request.req_id]

    def _start(self, request: Request) -> None:
        names = [source.name for source in request.sources]
        self._writing[request.req_id] = set(names)
        self.receiver.track(request.req_id, [request.local], peer=names)
        self.receiver.expect_writes(request.req_id)  # before a rank can know: from now on it may write
        told = Registration(request.req_id, request.remote, request.local, len(names)).encode()
        for source in request.sources:
            self._tell(source, told)

    def _report(self, req_id: str, *, failed: bool) -> None:
        super()._report(req_id, failed=failed)
        self._writing.pop(req_id, None)

    def _send_heartbeats(self) -> None:
        for source in self.sources.values():
            if self.has_lost(source):
                continue
            waiting = [req_id for req_id, r in self.outstanding.items() if source in r.sources]
            self._tell(source, notifs.heartbeat(waiting))

    def _tell(self, source: Source, message: bytes) -> None:
        try:
            self._agent.send_notif(source.name, message)
        except Exception as error:
            if not is_disconnect(error):
                raise
            self.receiver.peer_lost(source.name)
