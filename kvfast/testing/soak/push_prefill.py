"""The process of a prefill rank in the push soak: it WRITEs to decode from a ring of blocks under leases.

A source block is overwritten the moment the policy gives it back. Half of the requests are one
WRITE, whose notification NIXL sends when it has landed; the others are two, and the rank tells
decode when the policy says that both have.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kvfast import notifs
from kvfast.demo.process import Message
from kvfast.notifs import Heartbeat, NotifReader, parse

from .agents import FaultyAgent, InjectedError, NotifFaults
from .plan import RequestPlan, request_plan
from .rank import SoakRank, run_rank, text
from .ring import WRITE, WriteOrder, decode_write, encode_failed, encode_freed
from .rss import peak_rss_mb
from .send_policies import make_send_policy
from .settings import SoakSettings

_REMEMBERED: Final = 4096


class PushPrefill(SoakRank):
    """The rank's WRITEs."""

    def __init__(self, name: str, key: int, column: int, settings: SoakSettings) -> None:
        super().__init__(name, key, column, settings)
        self._notif_faults = NotifFaults(self.send_notif, self._faults_of)
        self._faulty = FaultyAgent(self.agent)
        self._policy = make_send_policy(self.agent, self._faulty, settings)
        self._reader = NotifReader(self._policy.quarantine)
        self._orders: dict[str, WriteOrder] = {}
        self._ended: OrderedDict[str, bytes] = OrderedDict()  # what decode was told, should it ask again
        self._handles: dict[str, list[Any]] = {}
        self._unreleased: list[Any] = []
        self._injected: dict[str, int] = {}
        self._to_write: queue.SimpleQueue[WriteOrder] = queue.SimpleQueue()
        if self._policy.threaded:
            threading.Thread(target=self._write_all, daemon=True, name="writer").start()

    def step(self) -> None:
        ordinary: dict[str, list[bytes]] = {}
        for peer, messages in self.agent.get_new_notifs().items():
            ordinary[text(peer)] = [m for m in messages if not self._take_order(m)]
        for _, notif in self._reader.read(ordinary):
            if isinstance(notif, Heartbeat):
                self._policy.heartbeat(notif.req_ids, self.settings.lease_s)
        sent = self._policy.poll()
        for req_id in sent.finished:
            self._end(req_id, "finished")
        for req_id in sent.expired:
            self._end(req_id, "expired")
        self._notif_faults.send_late()

    def stats(self) -> Message:
        self._unreleased = [handle for handle in self._unreleased if not handle._released]
        quarantine = self._policy.quarantine
        return {
            **self.counts,
            "tracked": self._policy.tracked,
            "left_handles": max(self._policy.left_handles, len(self._unreleased)),
            "rss_mb": peak_rss_mb(),
            "counters": quarantine.counted(),
            "injected": {**self._injected, **self._notif_faults.counts},
            "quarantine": quarantine.summary(),
        }

    # ---- a request

    def _take_order(self, message: bytes) -> bool:
        if not message.startswith(WRITE):
            return False
        order = decode_write(message)
        if order.req_id in self._ended:
            self.tell(self._ended[order.req_id])
            self.tell(encode_freed(order.positions))
        elif order.req_id not in self._orders:
            self._begin(order)
        return True

    def _begin(self, order: WriteOrder) -> None:
        self._orders[order.req_id] = order
        blocks = [self.ring.block(position) for position in order.positions]
        wrapped = self._plan(order).wrapped
        self._policy.track(order.req_id, blocks, order.lease_s, wrapped=wrapped)
        if self._policy.threaded:
            self._to_write.put(order)
        else:
            self._write(order)

    def _write_all(self) -> None:
        while True:
            self._write(self._to_write.get())

    def _write(self, order: WriteOrder) -> None:
        plan = self._plan(order)
        faults = plan.faults if plan.pick % self.settings.ranks == self.column else frozenset()
        handles = self._handles[order.req_id] = []
        prepares = [partial(self._prepare, order, part, faults) for part in _parts(order)]
        transfer = self._transfer(handles, faults, len(prepares))
        self._policy.post(order.req_id, self.decode_name, prepares, transfer)

    def _prepare(self, order: WriteOrder, part: range, faults: frozenset[str]) -> Any:
        last = part.stop == len(order.positions)
        if last and "prepare" in faults:
            self._inject("prepare")
            raise InjectedError("prepare refused")
        handle = self._initialize(order, part)
        self._handles[order.req_id].append(handle)
        if last and "release" in faults:
            self._inject("release")
            self._faulty.refuse_release(handle, self._plan(order).repeat)
        if last and "telemetry" in faults:
            self._inject("telemetry")
            self._faulty.refuse_telemetry(handle)
        return handle

    def _transfer(self, handles: list[Any], faults: frozenset[str], count: int) -> Callable[[Any], Any]:
        def transfer(handle: Any) -> Any:
            if "transfer" in faults and len(handles) == count and handle is handles[-1]:
                self._inject("transfer")
                raise InjectedError("transfer refused")
            return self.agent.transfer(handle)

        return transfer

    def _initialize(self, order: WriteOrder, part: range) -> Any:
        size = self.settings.block_bytes
        base = self.decode_address + self.column * self.settings.pool_blocks * size
        own = self.ring.memory.ctypes.data
        local = [(own + self.ring.block(order.positions[i]) * size, size, 0) for i in part]
        remote = [(base + order.blocks[i] * size, size, 0) for i in part]
        descs = self.agent.get_xfer_descs
        notif = notifs.consumed(order.req_id, order.producers) if _is_single(order) else b""
        return self.agent.initialize_xfer(
            "WRITE", descs(local, "DRAM"), descs(remote, "DRAM"), self.decode_name, notif
        )

    def _end(self, req_id: str, how: str) -> None:
        order = self._orders.pop(req_id, None)
        if order is None:
            self.counts["twice"] += 1
            return
        self.counts[how] += 1
        handles = self._handles.pop(req_id, [])
        self._unreleased += [handle for handle in handles if not handle._released]
        finished = how == "finished"
        message = (
            notifs.consumed(req_id, order.producers) if finished else encode_failed(req_id, order.producers)
        )
        self._ended[req_id] = message
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        # The blocks first: whoever gave them back too early must not be saved by the time a message takes.
        self.free(order.positions)
        if not (finished and _is_single(order)):
            self._tell_end(message)

    def _tell_end(self, message: bytes) -> None:
        try:
            self._notif_faults.send_notif(self.decode_name, message)
        except Exception:
            self.counts["unsent"] += 1  # decode asks again
            self.reconnect()

    # ---- faults

    def _plan(self, order: WriteOrder) -> RequestPlan:
        return request_plan(self.settings, int(order.req_id.rpartition(":")[2]))

    def _faults_of(self, message: bytes) -> frozenset[str]:
        notif = parse(message)
        if not isinstance(notif, notifs.Consumed):
            return frozenset()
        return request_plan(self.settings, int(notif.req_id.rpartition(":")[2])).faults

    def _inject(self, fault: str) -> None:
        self._injected[fault] = self._injected.get(fault, 0) + 1


def _is_single(order: WriteOrder) -> bool:
    return int(order.req_id.rpartition(":")[2]) % 2 == 1


def _parts(order: WriteOrder) -> list[range]:
    count = len(order.positions)
    half = count if _is_single(order) else (count + 1) // 2
    return [part for part in (range(half), range(half, count)) if part]


if __name__ == "__main__":
    run_rank(PushPrefill, sys.argv[1:])
