"""What raises in the middle of a poll, or of a post, takes no failure and no end with it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kvfast import DuplicateRequestError
from kvfast.receive import Receiver
from kvfast.results import ReceiveResults, SendResults
from kvfast.stats import Stats
from kvfast.testing import ScriptedAgent
from tests.orchestration.rigs import NOBODY, ReceiveRig, SendRig, ends


class OnceBroken(Stats):
    """Raises at its next use of some kind, once."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method
        self.broken = False

    def _strike(self, method: str) -> None:
        if self.broken and method == self.method:
            self.broken = False
            raise OSError("nobody takes these numbers")

    def observe_sweep(self, seconds: float) -> None:
        self._strike("observe_sweep")
        super().observe_sweep(seconds)

    def observe_result(self, result: Any) -> None:
        self._strike("observe_result")
        super().observe_result(result)

    def count(self, name: str, n: int = 1) -> None:
        self._strike(name)
        super().count(name, n)


@pytest.mark.parametrize(
    "method", ["observe_sweep", "observe_result", "finished_requests", "failed_requests"]
)
def test_statistics_that_raise_cost_no_request_its_end(
    method: str, receive_rig: Callable[..., ReceiveRig]
) -> None:
    stats = OnceBroken(method)
    rig = receive_rig(stats=stats)
    rig.track("good", 1)
    rig.track("bad", 2, 3)
    rig.states("DONE", 1)
    rig.states("BACKEND", 2)
    rig.states("DONE", 3)
    stats.broken = True
    with pytest.raises(OSError, match="nobody takes"):
        rig.poll()
    assert ends(rig.poll()) == ({"good"}, {"bad"}, set())
    rig.agent.assert_drained()


@pytest.mark.parametrize("name", ["finished_requests", "expired_leases", "failed_requests"])
def test_statistics_that_raise_cost_no_send_its_end(name: str, send_rig: Callable[..., SendRig]) -> None:
    stats = OnceBroken(name)
    rig = send_rig(stats=stats)
    rig.track("good", 1)
    rig.track("bad", 2, lease_s=1.0)
    rig.states("DONE", 1)
    rig.states("BACKEND", 2)
    rig.clock.advance(2.0)
    stats.broken = True
    with pytest.raises(OSError, match="nobody takes"):
        rig.poll()
    results = rig.poll()
    assert (set(results.finished), set(results.expired)) == ({"good"}, {"bad"})


def test_a_clock_that_raises_after_the_sweep_costs_no_failure() -> None:
    rig = ReceiveRig()
    rig.track("bad", 1)
    rig.states("BACKEND", 1)
    readings = iter([0.0, 0.0])  # the poll's and the table's: there is no third
    rig.receiver._clock = rig.receiver._table._clock = lambda: next(readings)  # type: ignore[misc]
    with pytest.raises(StopIteration):
        rig.poll()
    rig.receiver._clock = rig.receiver._table._clock = rig.clock  # type: ignore[misc]
    assert ends(rig.poll()) == (set(), {"bad"}, set())


def end_unreported(rig: Any, stats: OnceBroken) -> None:
    """Let a request R end, and the poll that would report it raise."""
    rig.track("R", 1)
    rig.states("DONE", 1)
    stats.broken = True
    with pytest.raises(OSError, match="nobody takes"):
        rig.poll()
    with pytest.raises(DuplicateRequestError, match="end of the earlier request 'R' is not reported"):
        rig.track("R")


def test_an_id_is_free_when_its_end_was_reported_and_not_before() -> None:
    stats = OnceBroken("finished_requests")
    rig = ReceiveRig(stats=stats)
    end_unreported(rig, stats)
    assert ends(rig.poll()) == ({"R"}, set(), set())
    rig.track("R")


def test_a_sends_id_is_free_when_its_end_was_reported_and_not_before() -> None:
    stats = OnceBroken("finished_requests")
    rig = SendRig(stats=stats)
    end_unreported(rig, stats)
    assert rig.poll().finished == {"R"}
    rig.track("R")


class Filter(logging.Filter):
    """Raises at lines of one level."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.DEBUG:
            raise OSError("no room for a line")
        return True


@pytest.mark.parametrize("kind", [ReceiveRig, SendRig])
def test_a_debug_line_that_raises_costs_no_end(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig = kind()
    rig.track("R", 1)
    rig.states("DONE", 1)
    caplog.set_level(logging.DEBUG, "kvfast")
    caplog.handler.addFilter(filter_ := Filter())
    try:
        assert rig.poll().finished == {"R"}  # its line waits for the next poll
        with pytest.raises(OSError, match="no room"):
            rig.poll()
    finally:
        caplog.handler.removeFilter(filter_)
    assert rig.poll().finished == NOBODY


class PostsWithin(ScriptedAgent):
    """Has something done from within a release, as a caller's own agent may."""

    then: Any = None

    def release_xfer_handle(self, handle: Any) -> None:
        super().release_xfer_handle(handle)
        then, self.then = self.then, None
        if then is not None:
            then()


@pytest.mark.parametrize("second", ["DONE", "BACKEND"])
def test_what_is_posted_within_a_sweep_is_waited_for(second: str) -> None:
    rig = ReceiveRig()
    rig.agent = PostsWithin()
    rig.receiver = Receiver(rig.agent, clock=rig.clock, backend="python")
    rig.track("R", 1)
    rig.states("DONE", 1)
    rig.agent.then = lambda: rig.post("R", 2)
    assert ends(rig.poll()) == (set(), set(), set())
    assert rig.agent.in_flight == {2}
    rig.states(second, 2)
    assert ends(rig.poll()) == (({"R"}, set(), set()) if second == "DONE" else (set(), {"R"}, set()))


class Interrupted(Exception):
    """Stands for what may come between any two steps."""


@pytest.mark.parametrize("kind", [ReceiveRig, SendRig])
def test_a_post_whose_handles_could_not_be_kept_is_never_over(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its handle is in no table: nothing can tell when its bytes have landed, so its blocks stay held.
    def interrupted(*_: Any) -> str:
        raise Interrupted

    rig = kind()
    rig.agent.handle_objects = True
    rig.track("R", peer="P")
    with monkeypatch.context() as patch:
        patch.setattr("kvfast.polling.keep_handles", interrupted)
        with pytest.raises(Interrupted):
            rig.post("R", 1)
    gc.collect()
    assert (rig.agent.in_flight, rig.agent.released) == ({1}, [])  # a dropped object would release itself
    if kind is ReceiveRig:
        rig.receiver.abort("R")
    else:
        rig.clock.advance(1000.0)
    for _ in range(3):
        assert rig.poll() in (ReceiveResults(), SendResults())
    owner = rig.receiver if kind is ReceiveRig else rig.sender
    assert owner.outstanding_of("P") == 1
    assert owner.close(0.0).left == ("R",)
    assert owner.guard.outstanding_of("P") == 1
