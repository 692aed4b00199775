"""The pull soak's decode: READ each request from every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kvfast import notifs

from .agents import InjectedError, handle_id
from .loop import DecodeLoop, Request
from .memory import Share
from .ring import encode_track
from .sources import Source

_MISSED_S: Final = 3.0


class PullLoop(DecodeLoop):
    """Own READs, two handles a rank where there are blocks for it."""

    def _start(self, request: Request, sources: list[Source]) -> None:
        req_id = request.plan.req_id
        for source, share in zip(sources, request.shares):
            self._tell(source, encode_track(req_id, self._lease_of(request), share.positions))
            self.policy.add_notif(req_id, source.name, notifs.consumed(req_id, 1))
        victim = request.plan.pick % len(sources)
        for i, source in enumerate(sources):
            faults = request.plan.faults if i == victim else frozenset()
            prepares = self._prepares(request, source, i, faults)
            if not self.policy.post(req_id, source.name, prepares, self._transfer(request, faults)):
                return

    def _ask_again(self, source: Source, now: float) -> None:
        # The rank keeps blocks that it must give back by now: it has missed the order, or we its answer.
        missed = now - 2 * self._settings.lease_s - _MISSED_S
        for first, (req_id, positions, asked_at) in list(source.kept.items()):
            if asked_at < missed and req_id not in self.outstanding:
                source.kept[first] = req_id, positions, now
                self._tell(source, encode_track(req_id, self._settings.short_lease_s, positions))

    def _take_notif(self, source: Source, message: bytes) -> None:
        raise RuntimeError(f"{source.name} has nothing to say but what it freed, not {message!r}")

    def _prepares(
        self, request: Request, source: Source, index: int, faults: frozenset[str]
    ) -> list[Callable[[], Any]]:
        count = len(request.blocks)
        half = (count + 1) // 2
        parts = [part for part in (range(half), range(half, count)) if part]

        def prepare(part: range) -> Any:
            last = part is parts[-1]
            if last and "prepare" in faults:
                self.counts.inject("prepare")
                raise InjectedError("prepare refused")
            handle = self._initialize(request, source, request.shares[index], part)
            self._note_handle(request, index, part, handle)
            if last:
                self._doom(handle, faults, request.plan.repeat)
            return handle

        return [lambda part=part: prepare(part) for part in parts]  # type: ignore[misc]

    def _note_handle(self, request: Request, index: int, part: range, handle: Any) -> None:
        self.counts.handles += 1
        request.handles.append(handle)
        share = request.shares[index]
        ids = tuple(handle_id(handle) if i in part else h for i, h in enumerate(share.handles))
        request.shares[index] = Share(share.column, share.source, share.rank, share.positions, ids)

    def _doom(self, handle: Any, faults: frozenset[str], times: int) -> None:
        if "release" in faults:
            self.counts.inject("release")
            self._faulty.refuse_release(handle, times)
        if "telemetry" in faults:
            self.counts.inject("telemetry")
            self._faulty.refuse_telemetry(handle)

    def _transfer(self, request: Request, faults: frozenset[str]) -> Callable[[Any], Any]:
        def transfer(handle: Any) -> Any:
            if "transfer" in faults and handle is request.handles[-1]:
                self.counts.inject("transfer")
                raise InjectedError("transfer refused")
            return self._agent.transfer(handle)

        return transfer

    def _initialize(self, request: Request, source: Source, share: Share, part: range) -> Any:
        size = self._settings.block_bytes
        own = self._memory[source.column].ctypes.data
        ring = self._settings.rank_blocks
        local = [(own + request.blocks[i] * size, size, 0) for i in part]
        remote = [(source.address + share.positions[i] % ring * size, size, 0) for i in part]
        descs = self._agent.get_xfer_descs
        return self._agent.initialize_xfer("READ", descs(local, "DRAM"), descs(remote, "DRAM"), source.name)
