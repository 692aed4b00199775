"""That the floors file is complete, and that every gate in it can be missed."""

from __future__ import annotations

from datetime import datetime, timezone
from math import inf

import pytest

from bench.gates import FLOORS
from kvfast.benchgate import GateBook, load

GATES = load(FLOORS)


@pytest.mark.parametrize("name", GATES)
def test_a_gate_has_its_reason_and_can_be_missed(name: str) -> None:
    gate = GATES[name]
    assert gate.date <= datetime.now(timezone.utc).date()
    bound, sign = (gate.at_least, -1) if gate.at_least is not None else (gate.at_most, 1)
    assert bound is not None
    assert gate.holds(bound)
    for bad in (bound * (1 + sign * 0.001), sign * inf, float("nan")):
        with pytest.raises(AssertionError, match=rf"^{name}: .* must be [<>]= "):
            GateBook(GATES).expect(name, lambda bad=bad: bad)  # type: ignore[misc]


def test_every_gate_is_asked_for_by_a_benchmark() -> None:
    code = "".join(path.read_text() for path in FLOORS.parent.glob("test_*.py"))
    dynamic = {"contention-256-all", "contention-256-watch", "contention-1024-all", "contention-1024-watch"}
    assert 'f"contention-{beside.handles}-{scan}"' in code
    assert [name for name in GATES if f'"{name}"' not in code and name not in dynamic] == []
