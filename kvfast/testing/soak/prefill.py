"""The process of a prefill rank in the pull soak: a `kvfast.Sender` over a ring of blocks.

It frees a request's blocks when decode has read them or the lease is over, and overwrites them at
once. NIXL serves the READs; this loop only keeps the promises.
"""

from __future__ import annotations

import sys

from kvfast.demo.process import Message
from kvfast.notifs import Consumed, NotifReader
from kvfast.send import Sender

from .rank import SoakRank, run_rank, text
from .ring import TRACK, decode_track, encode_freed
from .rss import peak_rss_mb
from .settings import SoakSettings


class PullPrefill(SoakRank):
    """The rank's sender."""

    def __init__(self, name: str, key: int, column: int, settings: SoakSettings) -> None:
        super().__init__(name, key, column, settings)
        self._sender = Sender(self.agent)
        self._reader = NotifReader(self._sender.stats)
        self._positions: dict[str, list[int]] = {}

    def step(self) -> None:
        ordinary: dict[str, list[bytes]] = {}
        for peer, messages in self.agent.get_new_notifs().items():
            ordinary[text(peer)] = [m for m in messages if not self._track(m)]
        for _, notif in self._reader.read(ordinary):
            if isinstance(notif, Consumed):
                self._sender.notified(notif.req_id, notif.count)
            else:
                self._sender.heartbeat(notif.req_ids, self.settings.lease_s)
        results = self._sender.poll()
        for name, req_ids in (("finished", results.finished), ("expired", results.expired)):
            self.counts[name] += len(req_ids)
            for req_id in sorted(req_ids):
                self._give_back(req_id)

    def stats(self) -> Message:
        counters = {k: v for k, v in self._sender.stats.snapshot().items() if isinstance(v, int) and v}
        left = {"tracked": len(self._sender), "left_handles": 0, "rss_mb": peak_rss_mb()}
        return {**self.counts, **left, "counters": counters}

    def _track(self, message: bytes) -> bool:
        if not message.startswith(TRACK):
            return False
        req_id, lease_s, positions = decode_track(message)
        if not all(map(self.ring.holds, positions)):
            self.tell(encode_freed(positions))  # decode has missed it
        elif req_id not in self._sender:
            self._positions[req_id] = positions
            self._sender.track(req_id, [list(map(self.ring.block, positions))], lease_s=lease_s)
        return True

    def _give_back(self, req_id: str) -> None:
        positions = self._positions.pop(req_id, None)
        if positions is None:
            self.counts["twice"] += 1
        else:
            self.free(positions)


if __name__ == "__main__":
    run_rank(PullPrefill, sys.argv[1:])
