"""What a table promises, said a second time: slow, obvious, and with nothing taken from kvfast.

It scans fully at every sweep. Sweeps must be ten seconds or more apart, so that every refused release
is tried again at every sweep: how retries back off has a test of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.backend.doubles import DISCONNECT, DONE, LOST, NIXL_STATUSES, PROC


class Seen(NamedTuple):
    """A sweep's result in a form that compares."""

    done: list[str]
    failed: list[str]
    failures: list[tuple[str, int, str, bool]]  # request, handle, status, lost
    samples: int
    retained: int
    blind_releases: int
    release_retries: int
    left: dict[str, list[int]]  # requests that stay, with their handles
    quarantined: list[str]
    of_peer: dict[str, int]


@dataclass
class ModelHandle:
    """A handle that has not been released."""

    request: str
    connection: tuple[str, int] | None  # a peer's name and which of its lives
    phase: str = "in flight"  # then "lost", "failed" or "leaked"
    since: float = 0.0
    refusals: int = 0


@dataclass
class Model:
    """The contract in a hundred lines."""

    lost_s: float
    failed_s: float
    handles: dict[int, ModelHandle] = field(default_factory=dict)
    requests: dict[str, bool] = field(default_factory=dict)  # id -> has it failed
    lives: dict[str, int] = field(default_factory=dict)
    dead: set[tuple[str, int]] = field(default_factory=set)

    def add(self, request: str, handles: list[int], peer: str | None) -> None:
        self.requests.setdefault(request, False)
        connection = None if peer is None else (peer, self.lives.setdefault(peer, 0))
        for handle in handles:
            self.handles[handle] = ModelHandle(request, connection)

    def sweep(self, now: float, statuses: list[int], refusals: set[int]) -> Seen:
        ended = {h: statuses[h] for h, m in self.handles.items() if m.phase == "in flight"}
        ended = {handle: status for handle, status in ended.items() if status != PROC}
        failures = self._fail(now, ended)
        failed = sorted({request for request, *_ in failures if not self.requests[request]})
        self.requests |= dict.fromkeys(failed, True)
        done_handles = [handle for handle, status in ended.items() if status == DONE]
        retries, blind = 0, 0
        for handle, item in list(self.handles.items()):
            if not self._may_release(handle, item, now, done_handles):
                continue
            retries += item.refusals > 0
            if handle in refusals:
                item.refusals += 1
                item.phase = "leaked" if handle in done_handles else item.phase
            else:
                blind += item.phase == "lost"
                del self.handles[handle]
        done = [request for request in self.requests if not self._waiting(request)]
        for request in done:
            del self.requests[request]
        return Seen(
            sorted(done),
            failed,
            failures,
            len(done_handles),
            sum(item.phase != "in flight" for item in self.handles.values()),
            blind,
            retries,
            {request: sorted(self._waiting(request)) for request in self.requests},
            sorted({item.request for item in self.handles.values() if item.phase == "lost"}),
            self._of_peer(),
        )

    def _fail(self, now: float, ended: dict[int, int]) -> list[tuple[str, int, str, bool]]:
        for handle, status in ended.items():
            connection = self.handles[handle].connection
            if status == DISCONNECT and connection is not None:
                self.dead.add(connection)
                self.lives[connection[0]] = max(self.lives[connection[0]], connection[1] + 1)
        for item in self.handles.values():
            if item.phase == "lost" and item.connection in self.dead:
                item.phase = "failed"
        failures = []
        for handle, status in ended.items():
            if status != DONE:
                item = self.handles[handle]
                lost = status == LOST and item.connection not in self.dead
                item.phase, item.since = "lost" if lost else "failed", now
                failures.append((item.request, handle, NIXL_STATUSES[status][0], lost))
        return sorted(failures)

    def _may_release(self, handle: int, item: ModelHandle, now: float, done: list[int]) -> bool:
        if item.phase == "in flight":
            return handle in done
        wait = {"lost": self.lost_s, "failed": self.failed_s, "leaked": 0.0}[item.phase]
        return now - item.since >= wait

    def _waiting(self, request: str) -> list[int]:
        return [h for h, item in self.handles.items() if item.request == request and item.phase != "leaked"]

    def _of_peer(self) -> dict[str, int]:
        names = [item.connection[0] for item in self.handles.values() if item.connection is not None]
        return {name: names.count(name) for name in self.lives}
