"""Run the scenarios of this folder's JSON files.

A file is a list of scenarios: what happens, step by step, and what must come out.

    {"name", "about", "kind": "receive" | "send" | "notif", "options": {...}, "steps": [...]}

``options`` are keyword arguments of the Receiver or Sender (``quarantine`` is ``{"lost_s", "failed_s"}``).
Time is a fake clock that starts at 0. The agent is a `ScriptedAgent`: a handle's state is ``"PROC"`` until
a step says otherwise. The steps are the keys of `COMMON_STEPS`, `RECEIVE_STEPS` and `SEND_STEPS`; what each
takes is said at its method. A step, or a part of a step, that is not known is an error of the test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

import kvfast
from kvfast import Quarantine, Receiver, Sender
from kvfast.testing import FakeClock, ScriptedAgent

Step = dict[str, Any]
Scenario = dict[str, Any]

FOLDER: Final = Path(__file__).parent
LONG_S: Final = 1000.0  # longer than any lease, quarantine or back-off in a scenario


class UnknownStepError(Exception):
    """The scenario file names something that this runner does not do."""


def scenarios(kind: str) -> list[Scenario]:
    """Return all scenarios of one kind."""
    found = [item for path in sorted(FOLDER.glob("*.json")) for item in json.loads(path.read_text())]
    return [item for item in found if item["kind"] == kind]


class CaseRunner:
    """One scenario's agent, clock and subject."""

    steps: Mapping[str, str]

    def __init__(self, subject: Any, agent: ScriptedAgent, clock: FakeClock) -> None:
        self.subject = subject
        self.agent = agent
        self.clock = clock
        self.peers: dict[str, str | None] = {}

    def run(self, steps: list[Step]) -> None:
        """Run all steps, then let everything end and look for misused handles."""
        for number, step in enumerate(steps, 1):
            try:
                self.do(step)
            except AssertionError as error:
                raise AssertionError(f"step {number}, {json.dumps(step)}: {error}") from error
        self.drain()
        self.agent.assert_drained()

    def do(self, step: Step) -> None:
        """Do one step."""
        kinds = [key for key in step if key in self.steps]
        if len(kinds) != 1:
            raise UnknownStepError(f"not a step: {step}")
        arguments = dict(step)
        subject = arguments.pop(kinds[0])
        method: Callable[..., None] = getattr(self, self.steps[kinds[0]])
        try:
            method(subject, **arguments)
        except TypeError as error:
            if method.__name__ in str(error):
                raise UnknownStepError(f"not a step: {step}") from error
            raise

    def drain(self) -> None:
        """End all handles well, and all quarantines."""
        for handle in self.agent.unreleased:
            self.agent.set_state(handle, "DONE")
            self.agent.allow_release(handle)
        for _ in range(2):  # a LOST handle's quarantine may begin with the first poll
            self.clock.advance(LONG_S)
            self.subject.poll()

    # ---- the script

    def states(self, states: dict[str, str]) -> None:
        """{"states": {"101": "DONE"}}."""
        self.agent.set_states({int(handle): state for handle, state in states.items()})

    def release_raises(self, handles: list[int]) -> None:
        """{"release_raises": [101]}: from now on."""
        self.agent.refuse_release(*handles)

    def release_ok(self, handles: list[int]) -> None:
        """{"release_ok": [101]}: from now on."""
        self.agent.allow_release(*handles)

    def telemetry_raises(self, handles: list[int]) -> None:
        """{"telemetry_raises": [101]}: from now on."""
        self.agent.refuse_telemetry(*handles)

    def telemetry_none(self, handles: list[int]) -> None:
        """{"telemetry_none": [101]}: from now on."""
        self.agent.omit_telemetry(*handles)

    def notif_raises(self, peers: list[str]) -> None:
        """{"notif_raises": ["P0"]}: from now on."""
        self.agent.refuse_notifs(*peers)

    def advance(self, seconds: float) -> None:
        """{"advance": 1.5}."""
        self.clock.advance(seconds)

    # ---- what must have come of it

    def released(self, handles: list[int]) -> None:
        """{"released": [101]}: all that were released so far, each once."""
        assert sorted(self.agent.released) == sorted(handles)

    def sent(self, notifs: list[list[str]]) -> None:
        """{"sent": [["P0", "R:1"]]}: all that were sent so far, in this order."""
        assert [[peer, message.decode()] for peer, message in self.agent.sent] == notifs

    def counts(self, counts: dict[str, int]) -> None:
        """{"counts": {"failed_transfers": 1}}: counters of the subject's stats."""
        found = self.subject.stats.snapshot()
        assert {name: found[name] for name in counts} == counts

    def raises(self, error: str, *, call: Step) -> None:
        """{"raises": "UnknownRequestError", "call": {...a step...}}."""
        with pytest.raises(getattr(kvfast, error)):
            self.do(call)

    # ---- help for both kinds

    def prepares(self, req_id: str, handles: list[int], fail: bool, transfer_raises: list[int]) -> list[Any]:
        """Return callables that give these handles."""
        self.agent.refuse_transfer(*transfer_raises)
        return [self._prepare(handle, self.peers.get(req_id), fail) for handle in handles]

    def _prepare(self, handle: int, peer: str | None, fail: bool) -> Callable[[], Any]:
        def prepare() -> Any:
            if fail:
                raise RuntimeError("prepare refused")
            return self.agent.prepare(handle, peer=peer)

        return prepare


COMMON_STEPS: Final = {
    name: name
    for name in (
        "states",
        "release_raises",
        "release_ok",
        "telemetry_raises",
        "telemetry_none",
        "notif_raises",
        "advance",
        "released",
        "sent",
        "counts",
        "raises",
        "track",
        "post",
        "fail",
        "notified",
        "poll",
    )
}
RECEIVE_STEPS: Final = {
    **COMMON_STEPS,
    "notif": "notif",
    "report_failure": "report_failure",
    "abort": "abort",
    "complete": "complete",
    "expect_writes": "expect_writes",
    "peer_lost": "peer_lost",
}
SEND_STEPS: Final = {**COMMON_STEPS, "heartbeat": "heartbeat"}


class ReceiveRunner(CaseRunner):
    """Steps of a Receiver."""

    steps = RECEIVE_STEPS

    def track(self, req_id: str, *, blocks: list[list[int]], peer: str | None = None) -> None:
        """{"track": "R", "blocks": [[1, 2], [9]]}: one list per group; perhaps "peer"."""
        self.subject.track(req_id, blocks, peer=peer)
        self.peers[req_id] = peer

    def post(
        self,
        req_id: str,
        *,
        handles: list[int],
        returns: bool,
        prepare_raises: bool = False,
        transfer_raises: list[int] | None = None,
    ) -> None:
        """{"post": "R", "handles": [101], "returns": true}: one post for each, until one says False.

        Perhaps "prepare_raises": true, or "transfer_raises": [101].
        """
        prepares = self.prepares(req_id, handles, prepare_raises, transfer_raises or [])
        assert all(self.subject.post(req_id, prepare) for prepare in prepares) is returns

    def notif(self, req_id: str, *, to: str, message: str) -> None:
        """{"notif": "R", "to": "P0", "message": "R:1"}."""
        self.subject.add_notif(req_id, to, message.encode())

    def fail(self, req_id: str) -> None:
        """{"fail": "R"}."""
        self.subject.fail(req_id, "scripted")

    def report_failure(self, req_id: str) -> None:
        """{"report_failure": "R"}: from another thread."""
        in_another_thread(lambda: self.subject.report_failure(req_id, "scripted"))

    def abort(self, req_id: str) -> None:
        """{"abort": "R"}."""
        self.subject.abort(req_id)

    def complete(self, req_id: str) -> None:
        """{"complete": "R"}."""
        self.subject.complete(req_id)

    def expect_writes(self, req_id: str) -> None:
        """{"expect_writes": "R"}."""
        self.subject.expect_writes(req_id)

    def notified(self, req_id: str, *, producers: int, failed: bool = False) -> None:
        """{"notified": "R", "producers": 2}: perhaps "failed": true."""
        self.subject.notified(req_id, producers, failed=failed)

    def peer_lost(self, peer: str) -> None:
        """{"peer_lost": "P0"}."""
        self.subject.peer_lost(peer)

    def poll(self, expected: dict[str, Any]) -> None:
        """{"poll": {"failed": ["R"], "invalid": [[1, 2]]}}: what is not named must be empty."""
        names = ("finished", "failed", "aborted", "stalled")
        refuse_unknown(expected, (*names, "invalid"))
        results = self.subject.poll()
        assert {name: sorted(getattr(results, name)) for name in names} == {
            name: sorted(expected.get(name, [])) for name in names
        }
        invalid = [sorted(group) for group in results.invalid_block_ids]
        if "invalid" in expected:
            assert invalid == expected["invalid"]
        else:
            assert not any(invalid)


class SendRunner(CaseRunner):
    """Steps of a Sender."""

    steps = SEND_STEPS

    def track(self, req_id: str, *, blocks: list[list[int]], lease_s: float) -> None:
        """{"track": "R", "blocks": [[1]], "lease_s": 30}."""
        self.subject.track(req_id, blocks, lease_s=lease_s)

    def post(
        self,
        req_id: str,
        *,
        handles: list[int],
        returns: bool,
        prepare_raises: bool = False,
        transfer_raises: list[int] | None = None,
    ) -> None:
        """{"post": "R", "handles": [201, 202], "returns": true}: one post with all of them."""
        prepares = self.prepares(req_id, handles, prepare_raises, transfer_raises or [])
        assert self.subject.post(req_id, prepares) is returns

    def fail(self, req_id: str) -> None:
        """{"fail": "R"}: from another thread."""
        in_another_thread(lambda: self.subject.fail(req_id, "scripted"))

    def notified(self, req_id: str, *, expected: int) -> None:
        """{"notified": "R", "expected": 2}."""
        self.subject.notified(req_id, expected)

    def heartbeat(self, req_ids: list[str], *, extend_s: float) -> None:
        """{"heartbeat": ["R"], "extend_s": 20}."""
        self.subject.heartbeat(req_ids, extend_s)

    def poll(self, expected: dict[str, list[str]]) -> None:
        """{"poll": {"finished": ["R"]}}: what is not named must be empty."""
        names = ("finished", "expired")
        refuse_unknown(expected, names)
        results = self.subject.poll()
        assert {name: sorted(getattr(results, name)) for name in names} == {
            name: sorted(expected.get(name, [])) for name in names
        }


def receive_runner(options: dict[str, Any], **setup: Any) -> ReceiveRunner:
    """Return the runner of a receiving scenario."""
    agent, clock, arguments = _prepared(options, setup)
    return ReceiveRunner(Receiver(agent, clock=clock, **arguments), agent, clock)


def send_runner(options: dict[str, Any], **setup: Any) -> SendRunner:
    """Return the runner of a sending scenario."""
    agent, clock, arguments = _prepared(options, setup)
    return SendRunner(Sender(agent, clock=clock, **arguments), agent, clock)


def _prepared(
    options: dict[str, Any], setup: dict[str, Any]
) -> tuple[ScriptedAgent, FakeClock, dict[str, Any]]:
    arguments = {**options, **setup}
    if "quarantine" in arguments:
        arguments["quarantine"] = Quarantine(**arguments["quarantine"])
    return ScriptedAgent(handle_objects=arguments.pop("handle_objects")), FakeClock(), arguments


def refuse_unknown(expected: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise if a poll expects something that there is not."""
    unknown = sorted(set(expected) - set(names))
    if unknown:
        raise UnknownStepError(f"a poll has no {', '.join(unknown)}")


def in_another_thread(call: Callable[[], object]) -> None:
    """Call something in a thread of its own and wait; raise here what it raises there."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
