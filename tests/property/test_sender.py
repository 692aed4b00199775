"""Random programs for a Sender, in four worlds: two backends, two scans."""

from __future__ import annotations

import pytest
from hypothesis import given

from kvfast.testing import FakeClock
from tests.property.programs import Program, send_programs
from tests.property.run import Run
from tests.property.send_world import SendWorld
from tests.property.worlds import LEFT_IN_FLIGHT, SETUPS

pytestmark = pytest.mark.filterwarnings(LEFT_IN_FLIGHT)


@given(send_programs)
def test_programs(program: Program) -> None:
    clock = FakeClock()
    worlds = [SendWorld(program.config, backend, scan, clock) for backend, scan in SETUPS]
    Run(program, worlds, clock).run()
