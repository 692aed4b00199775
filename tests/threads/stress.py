"""An engine with three threads: what it does with each request, and what must come of it.

The owner tracks, posts READs and polls. A handshake thread reports failures of receives and of sends. A
writer thread posts WRITEs. Each request has a plan, chosen at random; with it goes what must come out. Where
a report races with the request's end, both are right, and the counters must tell which it was.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from kvfast import Receiver, Sender
from kvfast.testing import FakeClock, ScriptedAgent

MOST_READS: Final = 64
MOST_WRITES: Final = 256
LEASE_S: Final = 20.0
TICK_S: Final = 0.01  # the fake clock, at each turn of the owner's loop
END_TURNS: Final = 100_000  # so many turns may the end take, leases included

READ_PLANS: Final = {
    "read": "finished",
    "read, and one fails": "failed",
    "reported before a read": "failed",
    "reported under a read": "either",
    "unknown": "unknown",
}
WRITE_PLANS: Final = {
    "write": "finished",
    "write, and one fails": "expired",
    "write, and one can't be posted": "expired",
    "failed under a write": "either",
}

Report = Callable[[str, str], None]


class Engine:
    """The three threads' common state. Only the owner reads what comes out."""

    def __init__(self, backend: str, scan: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.agent = ScriptedAgent(handle_objects=True)
        options: dict[str, Any] = {"backend": backend, "scan": scan, "clock": self.clock}
        self.receiver = Receiver(self.agent, **options)
        self.sender = Sender(self.agent, **options)
        self.reads: dict[str, str] = {}  # plans of the requests that are tracked
        self.writes: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.errors: list[BaseException] = []
        self.failed_sends: list[str] = []  # these two by the writer
        self.refused_posts: list[str] = []
        self._serial = 0
        self._to_report: queue.SimpleQueue[tuple[Report, str] | None] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()

    def run(self, go_on: Callable[[], bool]) -> None:
        """Run until `go_on` says no, and until everything has ended."""
        jobs = (self._report, self._write_all)
        threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            while go_on() and not self.errors:
                self._turn()
        finally:
            self._to_write.put(None)
        for _ in range(END_TURNS):
            if self.errors or not (self.reads or self.writes):
                break
            self._poll()
        for thread in threads:
            thread.join()
        self._poll()

    # ---- the owner

    def _turn(self) -> None:
        if len(self.reads) < MOST_READS:
            self._start_read(self.random.choice(list(READ_PLANS)))
        if len(self.writes) < MOST_WRITES:
            self._start_write(self.random.choice(list(WRITE_PLANS)))
        self._poll()

    def _poll(self) -> None:
        self.clock.advance(TICK_S)
        received = self.receiver.poll()
        self._take(self.reads, READ_PLANS, finished=received.finished, failed=received.failed)
        sent = self.sender.poll()
        self._take(self.writes, WRITE_PLANS, finished=sent.finished, expired=sent.expired)

    def _take(self, tracked: dict[str, str], plans: dict[str, str], **ends: frozenset[str]) -> None:
        for end, req_ids in ends.items():
            for req_id in req_ids:
                plan = tracked.pop(req_id, None)
                if plan is None or plans[plan] not in (end, "either"):
                    self.wrong.append(f"{req_id}, planned as {plan!r}, is in {end}")
                self.counts[f"{plan}: {end}"] += 1

    def _start_read(self, plan: str) -> None:
        req_id = self._new_id()
        if plan != "unknown":
            self.reads[req_id] = plan
            self.receiver.track(req_id, [[self._serial]])
        if plan != "reported before a read" and plan != "unknown":
            ends = ["DONE"] * self.random.randint(1, 3)
            if plan == "read, and one fails":
                ends[0] = "ERR"
            self.receiver.post_many(req_id, [self._preparing(end) for end in ends])
        if plan not in ("read", "read, and one fails"):
            self.counts["reported"] += 1
            self._to_report.put((self.receiver.report_failure, req_id))

    def _start_write(self, plan: str) -> None:
        req_id = self._new_id()
        self.writes[req_id] = plan
        self.sender.track(req_id, [[self._serial]], lease_s=LEASE_S)
        self._to_write.put((req_id, plan))

    def _new_id(self) -> str:
        self._serial += 1
        return f"R{self._serial}"

    def _preparing(self, end: str) -> Callable[[], Any]:
        before = ["PROC"] * self.random.randint(0, 4)

        def prepare() -> Any:
            handle = self.agent.prepare()
            if end == "refused":
                self.agent.refuse_transfer(handle)
            else:
                self.agent.set_state(handle, *before, end)
            return handle

        return prepare

    # ---- the other threads

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self.errors.append(error)

    def _report(self) -> None:
        while (item := self._to_report.get()) is not None:
            report, req_id = item
            report(req_id, "handshake failed")

    def _write_all(self) -> None:
        try:
            self._write()
        finally:
            self._to_report.put(None)  # after the last failure of a send

    def _write(self) -> None:
        while (item := self._to_write.get()) is not None:
            req_id, plan = item
            ends = ["DONE", "DONE", "DONE"]
            if plan == "write, and one fails":
                ends[1] = "ERR"
            elif plan == "write, and one can't be posted":
                ends[1] = "refused"
            elif plan == "failed under a write":
                self.failed_sends.append(req_id)
                self._to_report.put((self.sender.fail, req_id))
            if not self.sender.post(req_id, [self._preparing(end) for end in ends]):
                self.refused_posts.append(plan)
