"""Agents whose calls can be made to raise, and notifications that get lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

LATE_S: Final = 5.0
MALFORMED: Final = (b"\xff\xfe:1", b"no count", b"soak:1:", b"soak:1:0", b"soak:1:9999999999", b":1", b"")


class InjectedError(RuntimeError):
    """Raised by the soak on purpose."""


def handle_id(handle: Any) -> int:
    """Return the id of a handle object or of a plain int."""
    return int(getattr(handle, "_handle", handle))


class FaultyAgent:
    """A NIXL agent whose release and telemetry can be made to raise. Everything else is the agent's."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._refusals: dict[int, int] = {}
        self._mute: set[int] = set()
        self.injected = 0

    def refuse_release(self, handle: Any, times: int) -> None:
        """Let the next releases of a handle raise."""
        self._refusals[handle_id(handle)] = times

    def refuse_telemetry(self, handle: Any) -> None:
        """Let telemetry of a handle raise."""
        self._mute.add(handle_id(handle))

    def release_xfer_handle(self, handle: Any) -> None:
        """Release, or raise."""
        key = handle_id(handle)
        if self._refusals.get(key):
            self._refusals[key] -= 1
            self.injected += 1
            raise InjectedError("release refused")
        # The id may be used again by NIXL for another handle.
        self._refusals.pop(key, None)
        self._mute.discard(key)
        self._agent.release_xfer_handle(handle)

    def get_xfer_telemetry(self, handle: Any) -> Any:
        """Return telemetry, or raise."""
        if handle_id(handle) in self._mute:
            self.injected += 1
            raise InjectedError("no telemetry")
        return self._agent.get_xfer_telemetry(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)


class NotifFaults:
    """Stands between whoever sends a notification and the agent's ``send_notif``.

    Parameters
    ----------
    send : callable
        The agent's own ``send_notif``.
    faults_of : callable
        Returns the fault names of the request that a message is about.
    """

    def __init__(
        self,
        send: Callable[[str, bytes], object],
        faults_of: Callable[[bytes], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._faults_of = faults_of
        self._clock = clock
        self._late: list[tuple[float, int, str, bytes]] = []
        self.counts: dict[str, int] = {}
        self.undelivered = 0  # of the late ones: the peer had gone

    def send_notif(self, peer: str, notif_msg: bytes) -> None:
        """Send a message, or do to it what is planned."""
        faults = self._faults_of(notif_msg)
        if "notif-bad" in faults:
            self._count("notif-bad")
            self._send(peer, MALFORMED[self.counts["notif-bad"] % len(MALFORMED)])
        if "notif-lost" in faults:
            self._count("notif-lost")
            return
        if "notif-late" in faults:
            self._count("notif-late")
            entry = (self._clock() + LATE_S, self.counts["notif-late"], peer, notif_msg)
            heappush(self._late, entry)
            return
        self._send(peer, notif_msg)
        if "notif-twice" in faults:
            self._count("notif-twice")
            self._send(peer, notif_msg)

    def send_late(self) -> None:
        """Send what is late by now; a peer that has gone meanwhile misses it."""
        while self._late and self._late[0][0] <= self._clock():
            _, _, peer, message = heappop(self._late)
            try:
                self._send(peer, message)
            except Exception:
                self.undelivered += 1

    def _count(self, fault: str) -> None:
        self.counts[fault] = self.counts.get(fault, 0) + 1
