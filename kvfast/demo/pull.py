"""The pull side of the loop: decode READs each request's share from every rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvfast.receive import Receiver

from .engine import Engine, Request, Source
from .evidence import BindingWitness, Problems
from .messages import finished_message, read_message
from .pattern import Bytes


@dataclass(slots=True)
class _Read:
    """A READ, kept here to ask NIXL about it; who posts and releases it is the Receiver."""

    source: Source
    handle: Any


class PullEngine(Engine):
    """The loop over a Receiver that READs; ``agent`` is the one that it was made with."""

    def __init__(
        self,
        agent: Any,
        receiver: Receiver,
        memory: Bytes,
        sources: Iterable[Source],
        requests: Iterable[Request],
        problems: Problems,
    ) -> None:
        super().__init__(receiver, memory, sources, requests, problems)
        self._agent = agent
        self._binding = BindingWitness(agent)
        self._reads: dict[str, list[_Read]] = {}
        self._unreleased: list[Any] = []

    def has_lost(self, source: Source) -> bool:
        """Tell whether no handle of a source is outstanding."""
        return self.receiver.outstanding_of(source.name) == 0

    def close(self, timeout_s: float) -> int:
        """End; return how many requests and handles are left, by the Receiver and by the handles."""
        left = super().close(timeout_s)
        return left + sum(not handle._released for handle in self._unreleased)

    def runs(self, request: Request, source: Source) -> bool:
        """Tell whether NIXL says that a READ of a request from a source is in progress."""
        reads = self._reads[request.req_id]
        return self._binding.any_in_flight(read.handle for read in reads if read.source == source)

    def _start(self, request: Request) -> None:
        self._reads[request.req_id] = []
        names = [source.name for source in request.sources]
        self.receiver.track(request.req_id, [request.local], peer=names)
        for source in request.sources:
            self.receiver.add_notif(request.req_id, source.name, finished_message(request.req_id))
        for source in request.sources:
            if not self.receiver.post(
                request.req_id, partial(self._prepare, request, source), peer=source.name
            ):
                return

    def _prepare(self, request: Request, source: Source) -> Any:
        own = self._memory[source.rank].ctypes.data
        local = self._descriptors(own, request.local)
        remote = self._descriptors(source.address, request.remote)
        told = read_message(request.req_id)
        handle = self._agent.initialize_xfer("READ", local, remote, source.name, told)
        self._reads[request.req_id].append(_Read(source, handle))
        return handle

    def _descriptors(self, address: int, blocks: list[int]) -> Any:
        size = self._memory.shape[2]
        return self._agent.get_xfer_descs([(address + b * size, size, 0) for b in blocks], "DRAM")

    def _report(self, req_id: str, *, failed: bool) -> None:
        for read in self._reads.pop(req_id, []):
            if not read.handle._released:
                self._unreleased.append(read.handle)  # let it go unreleased, and it would release itself
        super()._report(req_id, failed=failed)
