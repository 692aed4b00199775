"""The programs are no idle talk: all that can happen does happen in them."""

from __future__ import annotations

from typing import Final

import pytest

from kvfast.testing import FakeClock
from tests.property.programs import RECEIVE_PROGRAMS, SEND_PROGRAMS, STEPS, WAYS, Pass, Program, Programs
from tests.property.receive_world import ReceiveWorld
from tests.property.run import Run
from tests.property.search import for_programs
from tests.property.send_world import SendWorld
from tests.property.world import World
from tests.property.worlds import LEFT_IN_FLIGHT

pytestmark = pytest.mark.filterwarnings(LEFT_IN_FLIGHT)

PROGRAMS: Final = 300
POSTS: Final = {f"post: {way}" for way in WAYS}
RECEIVE_EVENTS: Final = POSTS | {
    "finished",
    "failed",
    "aborted",
    "stalled",
    "LOST",
    "handle failure",
    "notif sent",
    "peer removed",
    "post declined: failed or aborted",
    "post declined: too late",
    "post declined: peer is being removed",
    "read too late",
}
SEND_EVENTS: Final = POSTS | {
    "finished",
    "expired",
    "LOST",
    "handle failure",
    "post declined: failed",
    "post declined: too late",
}


class Seen:
    """What came up in many programs."""

    def __init__(self, world: type[World], programs: Programs) -> None:
        self.events: set[str] = set()
        self.steps = self.compared = self.excused = 0
        self._world = world
        for_programs(programs, self._run, PROGRAMS)

    def _run(self, program: Program) -> None:
        clock = FakeClock()
        worlds = [self._world(program.config, "python", scan, clock) for scan in ("all", "watch")]
        run = Run(program, worlds, clock)
        run.run()
        self.events |= worlds[0].seen
        self.steps += sum(step != Pass() for step in program.steps)
        self.compared += run.compared
        self.excused += len(run.excused)


def test_all_events_of_a_receiver() -> None:
    seen = Seen(ReceiveWorld, RECEIVE_PROGRAMS)
    assert sorted(seen.events ^ RECEIVE_EVENTS) == []
    assert seen.steps >= PROGRAMS * STEPS
    # Between scans, most ends are compared.
    assert seen.compared > 3 * seen.excused


def test_all_events_of_a_sender() -> None:
    seen = Seen(SendWorld, SEND_PROGRAMS)
    assert sorted(seen.events ^ SEND_EVENTS) == []
    assert seen.steps >= PROGRAMS * STEPS
    assert seen.compared > 3 * seen.excused
