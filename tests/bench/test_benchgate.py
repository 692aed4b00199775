"""Floors of benchmarks: one that is missed fails, and a bad file is named with what is wrong in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvfast.benchgate import RETRIES, Gate, GateBook, GateFileError, judge_all, load, main, read_results

DAY = date(2026, 11, 29)
ROW = '[speed]\nwhat = "w"\nvalue = "slow / fast"\nreason = "r"\ndate = 2026-11-29\n'


def book(**bounds: float) -> GateBook:
    return GateBook({"speed": Gate("speed", "what", "slow / fast", "reason", DAY, **bounds)})  # type: ignore[arg-type]


def always(value: float) -> Callable[[], float]:
    return lambda: value


@pytest.mark.parametrize(
    ("bounds", "value", "held"),
    [
        ({"at_least": 3.0}, 3.0, True),
        ({"at_least": 3.0}, 2.99, False),
        ({"at_least": 3.0}, float("nan"), False),
        ({"at_most": 1.15}, 1.15, True),
        ({"at_most": 1.15}, 1.16, False),
        ({"at_most": 1.15}, float("nan"), False),
    ],
)
def test_a_bound_is_a_floor_or_a_ceiling(bounds: dict[str, float], value: float, held: bool) -> None:
    assert book(**bounds).judge("speed", always(value)).held is held


def test_a_missed_gate_fails_with_what_was_measured() -> None:
    again: list[None] = []
    with pytest.raises(
        AssertionError, match=r"^speed: slow / fast is 2\.00 x, must be >= 3 x \(6 / 3; 4 attempts\)$"
    ):
        book(at_least=3.0).expect("speed", always(2.0), lambda: again.append(None), note=lambda: "6 / 3")
    with pytest.raises(AssertionError, match=r"^speed: slow / fast is 2\.00 x, must be >= 3 x$"):
        book(at_least=3.0).expect("speed", always(2.0))


def test_a_gate_that_holds_passes() -> None:
    gates = book(at_least=3.0)
    gates.expect("speed", always(3.5), limit=always(7.0), note=lambda: "7 / 2")
    verdict = gates.verdicts["speed"]
    assert (verdict.measured, verdict.limit, verdict.note, verdict.attempts) == (3.5, 7.0, "7 / 2", 1)


def test_a_missed_gate_is_measured_again_so_often_and_no_more() -> None:
    values = [1.0, 2.0, 3.0]
    tries: list[None] = []
    verdict = book(at_least=3.0).judge("speed", lambda: values[len(tries)], lambda: tries.append(None))
    assert (verdict.held, verdict.attempts) == (True, 3)
    never: list[None] = []
    verdict = book(at_least=3.0).judge("speed", always(1.0), lambda: never.append(None))
    assert (verdict.held, len(never)) == (False, RETRIES)


@pytest.mark.parametrize(
    ("bounds", "worst", "word"),
    [
        ({"at_least": 3.0}, 4.0, "ok"),
        ({"at_least": 4.5}, 4.0, "MISSED"),
        ({"at_most": 7.0}, 6.0, "ok"),
        ({"at_most": 5.0}, 6.0, "MISSED"),
    ],
)
def test_the_report_shows_the_worst_of_several_cases(
    bounds: dict[str, float], worst: float, word: str
) -> None:
    for values in ([4.0, 6.0, 5.0], [6.0, 5.0, 4.0], [5.0, 4.0, 6.0]):
        gates = book(**bounds)
        for value in values:
            gates.judge("speed", always(value))
        assert gates.verdicts["speed"].measured == worst
        assert word in gates.lines()[1].split()


def test_the_report_shows_what_was_not_judged_and_how_often_others_were_measured() -> None:
    assert "not run" in book(at_least=3.0).lines()[1]
    gates = book(at_least=3.0)
    gates.judge("speed", always(1.0), lambda: None)
    assert f"MISSED ({RETRIES + 1} tries)" in gates.lines()[1]


def test_an_unknown_gate_is_named() -> None:
    with pytest.raises(KeyError, match="there is no gate 'spede'; there are speed"):
        book(at_least=3.0).judge("spede", always(4.0))
    with pytest.raises(KeyError, match="spede"):
        judge_all(book(at_least=3.0).gates, {"spede": 4.0})


def test_a_floors_file(tmp_path: Path) -> None:
    path = tmp_path / "floors.toml"
    path.write_text(f'{ROW}at_most = 2\nunit = "us"\n')
    gate = load(path)["speed"]
    assert (gate.name, gate.value, gate.date, gate.bound) == ("speed", "slow / fast", DAY, "<= 2 us")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no gates in it"),
        ("[speed\n", "no TOML: "),
        ("speed = 3\n", "gate speed: must be a table, not 3"),
        (ROW, "gate speed: exactly one of at_least and at_most must be given"),
        (
            f"{ROW}at_least = 1\nat_most = 2\n",
            "gate speed: exactly one of at_least and at_most must be given",
        ),
        (f"{ROW}at_least = 1\nfloor = 2\n", "gate speed: unknown field floor"),
        (ROW.replace('reason = "r"\n', "at_least = 1\n"), "gate speed: no reason"),
        (f'{ROW}at_least = "3"\n', "gate speed: at_least is '3'"),
        (f"{ROW}at_least = true\n", "gate speed: at_least is True"),
        (ROW.replace('"r"', '""') + "at_least = 1\n", "gate speed: reason is ''"),
        (ROW.replace("2026-11-29", '"today"') + "at_least = 1\n", "gate speed: date is 'today'"),
        (ROW.replace("29\n", "29T00:00:00Z\n") + "at_least = 1\n", "gate speed: date is datetime"),
    ],
)
def test_a_malformed_floors_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "floors.toml"
    path.write_text(text)
    with pytest.raises(GateFileError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON: "),
        ("[]", "must be an object of numbers by gate, or have one as gates"),
        ('{"gates": [1]}', "must be an object of numbers by gate, or have one as gates"),
        ('{"speed": "fast"}', "speed must be a number, not 'fast'"),
        ('{"gates": {"speed": true}}', "speed must be a number, not True"),
    ],
)
def test_a_malformed_results_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(GateFileError) as raised:
        read_results(path)
    assert str(raised.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("read", [load, read_results])
def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(GateFileError, match=r"nowhere: can't be read: .*No such file"):
        read(tmp_path / "nowhere")
    (tmp_path / "latin").write_bytes(b"\xe4")
    with pytest.raises(GateFileError, match=r"latin: can't be read: .*utf-8"):
        read(tmp_path / "latin")


def test_python_3_10_without_tomli_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "floors.toml"
    path.write_text(f"{ROW}at_least = 1\n")
    for name in ("tomli", "tomllib"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(GateFileError, match="pip install tomli"):
        load(path)


def command(folder: Path, results: object, *options: str, floors: str = f"{ROW}at_least = 3\n") -> Result:
    (folder / "floors.toml").write_text(floors)
    (folder / "results.json").write_text(json.dumps(results))
    return CliRunner().invoke(main, [str(folder / "floors.toml"), str(folder / "results.json"), *options])


@pytest.mark.parametrize("results", [{"speed": 3.5}, {"gates": {"speed": 3}, "machine": "any"}])
def test_the_command_passes_when_every_gate_holds(tmp_path: Path, results: object) -> None:
    told = command(tmp_path, results)
    assert told.exit_code == 0
    assert "ok" in told.stdout.splitlines()[1].split()
    assert told.stderr == ""


def test_the_command_fails_when_a_floor_is_missed(tmp_path: Path) -> None:
    told = command(tmp_path, {"speed": 2.9})
    assert told.exit_code == 1
    assert "MISSED" in told.stdout
    assert told.stderr == "speed: slow / fast is 2.90 x, must be >= 3 x\n"


def test_the_command_fails_when_a_gate_was_not_measured_unless_that_is_allowed(tmp_path: Path) -> None:
    told = command(tmp_path, {})
    assert (told.exit_code, told.stderr) == (1, "speed: not measured\n")
    assert command(tmp_path, {}, "--partial").exit_code == 0
    assert command(tmp_path, {"speed": 1.0}, "--partial").exit_code == 1


@pytest.mark.parametrize(
    ("results", "floors", "message"),
    [
        ({"spede": 3.0}, f"{ROW}at_least = 3\n", "results.json: there is no gate 'spede'"),
        ({"speed": "x"}, f"{ROW}at_least = 3\n", "results.json: speed must be a number"),
        ({"speed": 3.0}, ROW, "floors.toml: gate speed: exactly one"),
    ],
)
def test_the_command_names_what_it_can_not_judge(
    tmp_path: Path, results: object, floors: str, message: str
) -> None:
    told = command(tmp_path, results, floors=floors)
    assert told.exit_code == 2
    assert message in told.stderr
    assert told.stdout == ""
