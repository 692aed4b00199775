"""The push soak's decode: tell every rank where to write, and wait for what they say."""

from __future__ import annotations

from typing import Final

from kvfast.notifs import Consumed, parse

from .loop import DecodeLoop, Request
from .ring import FAILED, WriteOrder, decode_failed, encode_write
from .sources import Source

_MISSED_S: Final = 3.0  # without an answer for so long, a rank is asked again
_PATIENCE_S: Final = 3.0  # for so long a request's leases are extended


class PushLoop(DecodeLoop):
    """No own handles: what is outstanding is what the ranks were told to write."""

    def _start(self, request: Request, sources: list[Source]) -> None:
        self.policy.expect_writes(request.plan.req_id)
        for source, share in zip(sources, request.shares):
            self._order(source, request, list(share.positions))

    def _order(self, source: Source, request: Request, positions: list[int]) -> None:
        lease_s = self._lease_of(request)
        producers = len(request.shares)
        order = WriteOrder(request.plan.req_id, lease_s, producers, positions, request.blocks)
        self._tell(source, encode_write(order))

    def _ask_again(self, source: Source, now: float) -> None:
        # A rank that has ended its writes says so again. One that never got the order must not write into
        # blocks that have another owner by now: it is asked only while the request waits.
        for request in self.outstanding.values():
            share = next((s for s in request.shares if s.source == source.key), None)
            if (
                share is not None
                and now - max(request.posted_at, request.asked_at.get(source.key, 0)) > _MISSED_S
            ):
                request.asked_at[source.key] = now
                self._order(source, request, list(share.positions))

    def _extends_lease(self, request: Request, now: float) -> bool:
        # A send that has failed leaves with its lease. Who waits for its end must let that run out.
        return super()._extends_lease(request, now) and now - request.posted_at < _PATIENCE_S

    def _take_notif(self, source: Source, message: bytes) -> None:
        if message.startswith(FAILED):
            req_id, producers = decode_failed(message)
            self.policy.notified(req_id, producers, failed=True, peer=source.name)
            return
        notif = parse(message)
        if isinstance(notif, Consumed):
            self.policy.notified(notif.req_id, notif.count, failed=False, peer=source.name)
        else:
            self.counts.bad_notifs += 1
