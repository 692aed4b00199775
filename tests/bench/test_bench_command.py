"""``kvfast bench``: what it prints, and what it says when it can't."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from bench.gates import FLOORS
from kvfast.bench import bare_loop, command, measure, real
from kvfast.bench.errors import BenchError
from kvfast.bench.report import in_words, show
from kvfast.bench.result import IN_FLIGHT, REAL, BenchResult, Row
from kvfast.bench.subjects import ALL, LIMIT, LOOP, PYTHON, SUBJECTS, WATCH
from kvfast.benchgate import load
from kvfast_ext import BackendUnavailableError, cython_available
from tests.cli.command import run_json
from tests.nixl.rank import nixl_missing

needs_cython = pytest.mark.skipif(not cython_available(), reason="the cython backend is not built")
needs_nixl = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")
QUICK = ("--no-nixl", "--handles", "1,8", "--seconds", "0.05")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(command.bench, args)


def never(*_args: Any) -> Any:
    raise AssertionError("something was measured")


def found_by(*args: str) -> dict[str, Any]:
    told = invoke(*args, "--json")
    assert told.exit_code == 0, told.output
    found: dict[str, Any] = json.loads(told.stdout)
    return found


@needs_cython
def test_json_has_every_subject_with_every_number_of_handles() -> None:
    found = found_by(*QUICK)
    rows = {(row["handles"], row["subject"]): row["seconds"] for row in found["in_flight"]}
    subjects = {LOOP, PYTHON, ALL, WATCH} | ({LIMIT} if bare_loop.compiler() else set())
    assert {subject for handles, subject in rows if handles == 8} == subjects
    assert {handles for handles, _ in rows} == {1, 8}
    assert {row["transfers"] for row in found["in_flight"] + found["drain"]} == {"simulated"}
    assert {row["subject"] for row in found["drain"]} == {LOOP, PYTHON, ALL}
    assert all(isfinite(seconds) for seconds in rows.values())
    assert all(row["bursts"] >= 2 for row in found["in_flight"] + found["drain"])
    assert "real transfers: they were not asked for" in found["skipped"]


@needs_cython
@needs_nixl
def test_real_transfers_give_the_numbers_that_kvfasts_own_floors_are_about() -> None:
    code, found, _ = run_json("bench", "--handles", "256", "--seconds", "0.5")
    assert code == 0
    measured = {row["subject"] for row in found["in_flight"] if row["transfers"] == "real"}
    assert {LOOP, PYTHON, ALL, WATCH} <= measured
    assert {"in-flight-all", "in-flight-watch", "drain"} <= found["gates"].keys() <= load(FLOORS).keys()
    assert found["gates"]["in-flight-watch"] > 1


def test_the_tables_explain_themselves() -> None:
    told = invoke(*QUICK)
    assert told.exit_code == 0, told.output
    for words in (
        "A sweep while nothing ends",
        "A sweep in which all end",
        "one Python call a transfer",
        "not measured:",
    ):
        assert words in told.stdout
    rows = [line.split() for line in told.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["1", "8"]
    (drained,) = (row for row in rows if row and row[0] == "1,000")
    assert drained[-1].endswith("x" if cython_available() else "s")


def shown(*subjects: str, bursts: int, seconds: float = 0.7654321) -> str:
    result = BenchResult("2026-11-29", "a machine")
    result.add(Row(IN_FLIGHT, REAL, 4_096), dict.fromkeys(subjects, seconds), bursts)
    console = Console(width=80)
    with console.capture() as capture:
        show(result, console)
    return capture.get()


def test_the_widest_table_fits_80_columns_with_whole_words() -> None:
    text = shown(*SUBJECTS, bursts=4)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    heads = next(i for i, line in enumerate(lines) if line.split()[:1] == ["vLLM's"])
    assert lines[heads].split() == ["vLLM's", "python", "cython", "cython", "bare"]
    assert lines[heads + 1].split() == ["transfers", "loop", "all", "all", "watch", "C++", "loop", "speed-up"]
    # The legend begins each of its lines with a name, or indents it: none is broken.
    legend = lines[lines.index("", heads) + 1 :]
    assert {line[:15].strip() for line in legend} == {LOOP, "python", "cython", "", LIMIT, "~"}


def test_a_row_of_too_few_bursts_is_marked() -> None:
    text = shown(LOOP, WATCH, bursts=4)
    assert "4,096  ~765 ms  ~765 ms     ~1.0x" in text
    assert "fewer than 5 bursts" in text
    assert "~" not in shown(LOOP, WATCH, bursts=5)


def test_a_row_that_was_interrupted_in_all_its_bursts_is_marked() -> None:
    result = BenchResult("2026-11-29", "a machine")
    times = {1: 3e-6, 1_024: 1.6e-3, 4_096: 7e-3, 8_192: 49.5e-3}
    for handles, seconds in times.items():
        result.add(Row(IN_FLIGHT, REAL, handles), {LOOP: seconds, WATCH: handles * 1e-6}, 5)
    assert [row.handles for row in result.bursts if result.is_rough(row)] == [8_192]


def test_without_the_extension_nothing_is_said_of_it() -> None:
    text = shown(LOOP, PYTHON, bursts=5)
    for words in ("cython", "speed-up", LIMIT):
        assert words not in text
    assert not [line for line in text.splitlines() if line.split()[-1:] == ["-"]]


@pytest.mark.parametrize(
    ("handles", "words"),
    [
        ("0,4", "0 transfers can't be in flight"),
        ("4,many", "'4,many' is no list of numbers"),
        ("4,6", "6 is no multiple of 4"),
        ("4,100004", "100,004 transfers are too many: 100,000 is the most"),
    ],
)
def test_bad_numbers_of_handles(handles: str, words: str) -> None:
    told = invoke("--handles", handles)
    assert told.exit_code == 2
    assert words in told.stderr


def test_what_can_not_be_measured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link() -> Any:
        raise BackendUnavailableError("NIXL is not installed")

    monkeypatch.setattr(bare_loop, "compiler", lambda: None)
    monkeypatch.setattr(measure, "cython_available", lambda: False)
    monkeypatch.setattr(real, "link", no_link)
    found = found_by("--handles", "8", "--seconds", "0.05")
    assert {row["subject"] for row in found["in_flight"]} == {LOOP, PYTHON}
    assert found["gates"] == {}
    assert found["skipped"] == [
        "cython: the compiled backend is not installed",
        "bare C++ loop: no C++ compiler: set CXX, or install g++",
        "real transfers: NIXL is not installed",
    ]


def test_without_nixl_that_is_said_and_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_agent(_name: str) -> Any:
        raise BackendUnavailableError("NIXL is not installed: pip install it")

    monkeypatch.setattr(real, "open_agent", no_agent)
    monkeypatch.setattr(real, "Rank", never)
    found = found_by("--handles", "8", "--seconds", "0.05")
    assert "real transfers: NIXL is not installed: pip install it" in found["skipped"]


@needs_nixl
def test_real_transfers_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_loop, "compiler", lambda: None)
    found = found_by("--handles", "4", "--seconds", "0.05")
    measured = {row["subject"] for row in found["in_flight"] + found["drain"] if row["transfers"] == "real"}
    assert LIMIT not in measured
    assert {LOOP, PYTHON} <= measured
    assert "bare-loop" not in found["gates"]


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bare_loop, "compiler", lambda: "false")
    with pytest.raises(BenchError, match="false can't compile the bare loop"):
        bare_loop.build(tmp_path)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BenchError("a READ has failed"), 1, "kvfast: a READ has failed"),
        (BackendUnavailableError("no such"), 2, "kvfast: no such"),
        (ImportError("broken extension"), 2, "kvfast: broken extension"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_breaks_off_has_its_exit_status(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def broken(_self: measure.Bench) -> BenchResult:
        raise error

    monkeypatch.setattr(measure.Bench, "run", broken)
    told = invoke()
    assert told.exit_code == code
    assert words in told.stderr
    assert told.stdout == ""
    if code != 130:
        assert json.loads(invoke("--json").stdout) == {"ok": False, "error": str(error)}


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ("plot.pdf", "--plot makes .png or .svg, not "),
        ("nowhere/plot.svg", "there is no folder "),
        ("plot.svg", 'pip install "kvfast[bench]"'),
    ],
)
def test_a_plot_that_can_not_be_made_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, picture: str, words: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(measure.Bench, "run", never)
    told = invoke("--plot", str(tmp_path / picture))
    assert told.exit_code == 2
    assert words in told.stderr


def test_a_plot_is_drawn_of_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[tuple[BenchResult, Path]] = []
    monkeypatch.setattr("kvfast.bench.plot.check_plot", lambda path: None)
    monkeypatch.setattr("kvfast.bench.plot.plot", lambda *what: drawn.append(what))
    path = tmp_path / "plot.svg"
    told = invoke(*QUICK, "--plot", str(path))
    assert told.exit_code == 0, told.output
    ((result, where),) = drawn
    assert where == path
    assert result.in_flight.keys() == {"simulated"}
    assert f"drawn: {path}" in told.stderr


def test_times_in_words() -> None:
    assert [in_words(s) for s in (None, 5.04e-9, 42.04e-6, 0.5004, 7.0)] == [
        "-",
        "5.04 ns",
        "42.0 us",
        "500 ms",
        "7,000 ms",
    ]


@contextmanager
def broken_link() -> Iterator[None]:
    raise BenchError("the bytes of READs did not come")
    yield


def test_a_link_that_breaks_is_a_failure_and_no_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "link", broken_link)
    told = invoke("--handles", "8", "--seconds", "0.05")
    assert told.exit_code == 1
    assert "the bytes of READs did not come" in told.stderr
