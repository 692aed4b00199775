"""A stress test: nothing is lost, nothing is raised, and the counts prove it.

It runs for KVFAST_STRESS_S seconds for each backend; by default 30 in CI's profile and 2 in the others.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import pytest

from kvfast_ext import backend_name
from tests.threads.stress import Engine

PROFILE: Final = os.environ.get("KVFAST_HYPOTHESIS_PROFILE", "dev")
SECONDS: Final = float(os.environ.get("KVFAST_STRESS_S") or {"ci": 30, "nightly": 300}.get(PROFILE, 2))


@pytest.fixture
def hasty() -> Iterator[None]:
    """Switch threads much more often than Python does by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_three_threads(backend: ModuleType, hasty: None) -> None:
    engine = Engine(backend_name(backend), "watch", seed=3)
    end = time.monotonic() + SECONDS
    engine.run(lambda: time.monotonic() < end)

    assert engine.errors == []
    assert engine.wrong == []
    assert not engine.reads, "receives that never ended"
    assert not engine.writes, "sends that never ended"
    engine.agent.assert_drained()

    counts, late = engine.counts, "failures_of_unknown_requests"
    # Every report did one of two things: it failed a tracked request, or it was counted as too late.
    failed_by_report = counts["reported before a read: failed"] + counts["reported under a read: failed"]
    assert engine.receiver.stats.snapshot()[late] == counts["reported"] - failed_by_report
    failed_sends = counts["failed under a write: expired"]
    assert engine.sender.stats.snapshot()[late] == len(engine.failed_sends) - failed_sends
    # A send was refused for a reason: that it can't be posted, or that it was failed first.
    refused = "write, and one can't be posted"
    assert engine.refused_posts.count(refused) == counts[f"{refused}: expired"]
    assert set(engine.refused_posts) <= {refused, "failed under a write"}
    # And all of that happened.
    for event in (
        "read: finished",
        "read, and one fails: failed",
        "reported before a read: failed",
        "write: finished",
        "write, and one fails: expired",
        "write, and one can't be posted: expired",
        "failed under a write: expired",
        "reported",
    ):
        assert counts[event] > 0, event
    print(dict(counts))
