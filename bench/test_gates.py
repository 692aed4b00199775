"""The gates themselves: that one which is missed fails, and what a second look may change."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path

import pytest

from bench.gates import RETRIES, Gate, GateBook, load
from bench.race import Race, shortest
from bench.report import Report

DAY = date(2026, 11, 29)


def book(**bounds: float) -> GateBook:
    return GateBook({"speed": Gate("speed", "what", "slow / fast", "reason", DAY, **bounds)})  # type: ignore[arg-type]


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("bounds", "value", "held"),
    [
        ({"at_least": 3.0}, 3.0, True),
        ({"at_least": 3.0}, 2.99, False),
        ({"at_most": 1.15}, 1.15, True),
        ({"at_most": 1.15}, 1.16, False),
    ],
)
def test_a_bound_is_a_floor_or_a_ceiling(bounds: dict[str, float], value: float, held: bool) -> None:
    assert book(**bounds).judge("speed", lambda: value, nothing).held is held


def test_a_missed_gate_fails_with_what_was_measured() -> None:
    with pytest.raises(
        AssertionError, match=r"speed: slow / fast is 2\.00 x, must be >= 3 x \(6 / 3; 4 attempts\)"
    ):
        book(at_least=3.0).expect("speed", lambda: 2.0, nothing, note=lambda: "6 / 3")


def test_a_missed_gate_is_measured_again_so_often_and_no_more() -> None:
    values = [1.0, 2.0, 3.0]
    tries: list[None] = []
    verdict = book(at_least=3.0).judge("speed", lambda: values[len(tries)], lambda: tries.append(None))
    assert (verdict.held, verdict.attempts) == (True, 3)
    never: list[None] = []
    verdict = book(at_least=3.0).judge("speed", lambda: 1.0, lambda: never.append(None))
    assert (verdict.held, len(never)) == (False, RETRIES)


def test_one_missed_case_of_a_gate_is_what_the_report_shows() -> None:
    gates = book(at_least=3.0)
    for value in (4.0, 2.0, 5.0):
        gates.judge("speed", lambda value=value: value, nothing)  # type: ignore[misc]
    assert gates.verdicts["speed"].measured == 2.0
    assert any("MISSED" in line for line in Report(gates).lines())


def test_a_gate_that_was_not_judged_is_shown_as_such() -> None:
    assert any("not run" in line for line in Report(book(at_least=3.0)).lines())


def test_a_race_keeps_each_subjects_shortest_and_goes_on_from_there() -> None:
    bursts = {"a": iter([3.0, 2.0, 4.0]), "b": iter([8.0, 9.0, 6.0])}
    race = Race({name: lambda times=times: next(times) for name, times in bursts.items()})  # type: ignore[misc]
    race.run(2)
    assert race.ratio("b", "a") == 4.0
    race.run(1)
    assert (race.best, race.rounds) == ({"a": 2.0, "b": 6.0}, 3)


def test_shortest_of_calls_by_a_clock() -> None:
    ticks = iter([0, 50, 100, 130, 200, 290])
    assert shortest([nothing] * 3, lambda: next(ticks)) == 30e-9


def test_the_floors_file_is_complete() -> None:
    gates, today = load(), datetime.now(timezone.utc).date()
    assert all(gate.reason and gate.what and gate.date <= today for gate in gates.values())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("at_least = 1", "no reason"),
        ('reason = "r"', "exactly one"),
        ('reason = "r"\nat_least = 1\nat_most = 2', "exactly one"),
        ('reason = "r"\nat_least = 1\nfloor = 2', "unknown field floor"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "gates.toml"
    path.write_text(f'[speed]\nwhat = "w"\nvalue = "v"\ndate = 2026-11-29\n{row}\n')
    with pytest.raises(ValueError, match=f"gate speed: .*{message}"):
        load(path)
