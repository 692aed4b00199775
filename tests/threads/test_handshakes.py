"""What one thread does while another is in the middle of something: by handshake, not by time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest

from kvfast import Receiver, Sender
from kvfast.testing import FakeClock, ScriptedAgent

WAIT_S: Final = 60.0  # for another thread that must come; reached only where a test fails


class Gate:
    """A place where one thread stops until another one lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def stop(self) -> None:
        """Stop here; called by the thread that passes."""
        self._reached.set()
        assert self._open.wait(WAIT_S), "nobody opened the gate"

    def wait(self) -> None:
        """Wait until a thread has stopped here."""
        assert self._reached.wait(WAIT_S), "nobody came to the gate"

    def open(self) -> None:
        """Let it go on."""
        self._open.set()


class GatedAgent(ScriptedAgent):
    """An agent whose next check, or next transfer, stops at a gate."""

    check_gate: Gate | None = None
    transfer_gate: Gate | None = None

    def check_xfer_state(self, handle: Any) -> str:
        gate, self.check_gate = self.check_gate, None
        if gate is not None:
            gate.stop()
        return super().check_xfer_state(handle)

    def transfer(self, handle: Any, notif_msg: bytes = b"") -> str:
        status = super().transfer(handle, notif_msg)
        gate, self.transfer_gate = self.transfer_gate, None
        if gate is not None:
            gate.stop()
        return status


class Other:
    """A call in another thread. `result` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: list[Any] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except BaseException as error:
            self._error.append(error)

    def result(self) -> Any:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the other thread does not end"
        if self._error:
            raise self._error[0]
        return self._outcome[0]


@pytest.fixture
def agent() -> GatedAgent:
    return GatedAgent()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sender(agent: GatedAgent, clock: FakeClock, backend: ModuleType, scan: str) -> Sender:
    sender = Sender(agent, backend=backend, scan=scan, clock=clock)
    sender.track("R", [[1]], lease_s=10)
    return sender


def preparing(agent: ScriptedAgent, *handles: int) -> list[Callable[[], Any]]:
    return [lambda handle=handle: agent.prepare(handle) for handle in handles]  # type: ignore[misc]


def test_a_post_does_not_wait_for_a_sweep(agent: GatedAgent, sender: Sender) -> None:
    sender.track("S", [[2]], lease_s=10)
    assert sender.post("R", preparing(agent, 101))
    gate = agent.check_gate = Gate()

    def write() -> bool:
        gate.wait()  # the owner is in the middle of a sweep
        posted = sender.post("S", preparing(agent, 102, 103))
        gate.open()
        return posted

    writer = Other(write)
    agent.set_states({101: "DONE", 102: "DONE", 103: "DONE"})
    first = sender.poll()
    assert writer.result() is True
    assert first.finished == {"R"}
    assert sender.poll().finished == {"S"}
    agent.assert_drained()


def test_a_sweep_sees_all_handles_of_a_post_or_none(agent: GatedAgent, sender: Sender) -> None:
    gate = agent.transfer_gate = Gate()
    writer = Other(lambda: sender.post("R", preparing(agent, 101, 102)))
    gate.wait()  # 101 is posted, 102 is not
    agent.set_states({101: "DONE", 102: "PROC"})
    assert sender.poll().finished == frozenset()
    gate.open()
    assert writer.result() is True
    assert sender.poll().finished == frozenset()
    agent.set_states({102: "DONE"})
    assert sender.poll().finished == {"R"}
    agent.assert_drained()


def test_no_lease_expires_under_a_running_post(agent: GatedAgent, clock: FakeClock, sender: Sender) -> None:
    gate = agent.transfer_gate = Gate()
    writer = Other(lambda: sender.post("R", preparing(agent, 101)))
    gate.wait()
    clock.advance(11)
    assert sender.poll().expired == frozenset()
    gate.open()
    assert writer.result() is True
    assert sender.poll().expired == frozenset()
    agent.set_states({101: "DONE"})
    assert sender.poll().finished == {"R"}
    agent.assert_drained()


def test_a_failure_stops_the_rest_of_a_running_post(
    agent: GatedAgent, clock: FakeClock, sender: Sender
) -> None:
    gate = agent.transfer_gate = Gate()
    writer = Other(lambda: sender.post("R", preparing(agent, 101, 102)))
    gate.wait()
    sender.fail("R", "the handshake thread says so")
    gate.open()
    assert writer.result() is False
    assert agent.posted == [101]
    assert agent.released == [102]
    agent.set_states({101: "DONE"})
    assert sender.poll().finished == frozenset()
    clock.advance(11)
    assert sender.poll().expired == {"R"}
    agent.assert_drained()


def test_a_report_during_a_sweep_is_not_lost(agent: GatedAgent, backend: ModuleType, scan: str) -> None:
    receiver = Receiver(agent, backend=backend, scan=scan)
    receiver.track("R", [[1]])
    receiver.track("S", [[2]])
    assert receiver.post_many("R", preparing(agent, 101))
    gate = agent.check_gate = Gate()

    def report() -> None:
        gate.wait()
        receiver.report_failure("R", "the handshake thread says so")
        receiver.report_failure("S", "the handshake thread says so")
        gate.open()

    other = Other(report)
    agent.set_states({101: "DONE"})
    # It was reported before the poll that finds the last transfer landed has ended: it must not be finished.
    first, second = receiver.poll(), receiver.poll()
    other.result()
    assert not first.finished | second.finished
    assert first.failed | second.failed == {"R", "S"}
    agent.assert_drained()
