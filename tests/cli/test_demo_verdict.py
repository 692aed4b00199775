"""The demo's verdict and its table: each check fails for its own reason. No NIXL is needed."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from rich.console import Console

from kvfast.demo.evidence import BYTES, EARLY, ONCE, REUSE
from kvfast.demo.judge import DemoResult, judge
from kvfast.demo.report import show
from kvfast.demo.settings import DemoSettings

SETTINGS = DemoSettings(ranks=2, requests=10)
_COUNTED = "kvfast has counted the same requests"
NO_VIOLATIONS = {BYTES: 0, EARLY: 0, REUSE: 0, ONCE: 0}
SWEEPS = {"sweeps": 5, "min": 1.0, "median": 2.0, "max": 3.0}
GOOD: dict[str, Any] = {
    "finished": 7,
    "failed": ["req-2", "req-3", "req-4"],
    "bytes_from": {"prefill0": 3072, "spare1": 1024},
    "landed_from": {"prefill0": ["req-1", "req-3", "req-0"], "spare1": ["req-1"]},
    "finished_with": {"prefill0": ["req-1", "req-0"], "spare1": ["req-1"]},
    "blocks_given": 20,
    "sweep_us": SWEEPS,
    "transfers": {"ended": 17, "unsampled": 0, "bytes": 4096},
    "counters": {"finished_requests": 7, "failed_requests": 3},
    "fault": {
        "killed": "prefill1",
        "in_flight_when_killed": ["req-2", "req-3", "req-4", "req-5"],
        "told_of_death": False,
        "deferred": 3,
    },
    "dead": ["prefill1"],
    "left": 0,
    "backend": "python",
    "scan": "watch",
    "ops": "python",
    "ops_reason": "because",
    "nixl": "1.5.1",
    "violations": NO_VIOLATIONS,
    "problems": [],
}
TOLD: dict[str, dict[str, Any]] = {
    "prefill0": {"read": ["req-0", "req-1", "req-3"], "finished": ["req-0", "req-1"], "else": []},
    "spare1": {"read": ["req-1"], "finished": ["req-1"], "else": []},
}
SENT: dict[str, Any] = {
    "expired": [],
    "left": 0,
    "unsampled": 0,
    "sweep_us": SWEEPS,
    "violations": NO_VIOLATIONS,
    "problems": [],
    "backend": "cython",
    "scan": "all",
    "ops": "nixl",
    "ops_reason": "native",
}
SENDS: dict[str, dict[str, Any]] = {
    "prefill0": {**SENT, "finished": ["req-0", "req-1", "req-3"], "bytes": 3072},
    "spare1": {**SENT, "finished": ["req-1"], "bytes": 1024},
}
PUSH = DemoSettings(ranks=2, requests=10, push=True)


def verdict(changes: dict[str, Any], settings: DemoSettings = SETTINGS) -> DemoResult:
    """Judge a good run with changes: of decode's result, and of ranks' under their names."""
    ranks = copy.deepcopy(SENDS if settings.push else TOLD)
    measured = copy.deepcopy(GOOD)
    for name, change in changes.items():
        if name in ranks:
            ranks[name] |= change
        else:
            measured |= {name: change}
    return judge(settings, measured, ranks, 1.0)


def failed_checks(result: DemoResult) -> list[str]:
    return [check for check, held in result.checks.items() if not held]


@pytest.mark.parametrize("settings", [SETTINGS, PUSH])
def test_verdict_of_a_good_run(settings: DemoSettings) -> None:
    result = verdict({}, settings)
    assert failed_checks(result) == []
    assert result.ok
    found = result.as_dict()
    assert (found["ok"], found["failed"], found["bytes_checked"]) == (True, 3, 4096)


@pytest.mark.parametrize("settings", [SETTINGS, PUSH])
@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"violations": NO_VIOLATIONS | {BYTES: 1}}, BYTES),
        ({"violations": NO_VIOLATIONS | {EARLY: 1}}, EARLY),
        ({"violations": NO_VIOLATIONS | {REUSE: 1}}, REUSE),
        ({"violations": NO_VIOLATIONS | {ONCE: 1}}, ONCE),
        ({"left": 1}, "no request and no handle is left"),
        (
            {"counters": {"finished_requests": 8, "failed_requests": 3}},
            _COUNTED,
        ),
        ({"counters": {"finished_requests": 7}}, _COUNTED),
        ({"dead": ["prefill0", "prefill1"]}, "requests of the killed rank failed, and only those"),
        ({"dead": []}, "requests of the killed rank failed, and only those"),
        (
            {"fault": GOOD["fault"] | {"in_flight_when_killed": ["req-2", "req-3"]}},
            "requests of the killed rank failed, and only those",
        ),
        (
            {"fault": GOOD["fault"] | {"deferred": 0}},
            "failed requests had to wait for another rank",
        ),
    ],
)
def test_each_check_fails_for_its_own_reason(
    settings: DemoSettings, changes: dict[str, Any], check: str
) -> None:
    result = verdict(changes, settings)
    assert failed_checks(result) == [check]
    assert not result.ok


def test_a_request_that_did_not_end_fails() -> None:
    changes = {"finished": 6, "counters": {"finished_requests": 6, "failed_requests": 3}}
    assert failed_checks(verdict(changes)) == ["every request ended"]


@pytest.mark.parametrize(("settings", "what"), [(SETTINGS, "READs"), (PUSH, "WRITEs")])
def test_a_kill_that_hit_nothing_fails(settings: DemoSettings, what: str) -> None:
    changes = {
        "finished": 10,
        "failed": [],
        "counters": {"finished_requests": 10},
        "fault": GOOD["fault"] | {"in_flight_when_killed": []},
    }
    assert failed_checks(verdict(changes, settings)) == [
        f"{what} of the killed rank were in flight",
        "requests of the killed rank failed, and only those",
    ]


_READ = "each rank was told of exactly the READs from it that ended"
_FINISHED = "each rank was told of exactly the requests that finished"
_READ_BYTES = "every ended READ has telemetry, of as many bytes as were checked"
_SENT = "each rank's sends finished exactly where its bytes had landed"
_LEASES = "no lease ran out, and no rank has a send left"
_SOURCES = "no rank freed a block that was still being written from"
_WRITTEN_BYTES = "every ended WRITE has telemetry, of as many bytes as were checked"


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"prefill0": {"read": ["req-0", "req-1"]}}, _READ),
        ({"prefill0": {"read": ["req-0", "req-1", "req-1", "req-3"]}}, _READ),
        ({"prefill0": {"read": ["req-0", "req-1", "req-2"]}}, _READ),
        ({"spare1": {"read": []}}, _READ),
        ({"prefill0": {"finished": ["req-0"]}}, _FINISHED),
        ({"prefill0": {"finished": ["req-0", "req-1", "req-3"]}}, _FINISHED),  # of a failed one
        ({"spare1": {"else": ["b'?'"]}}, "no rank was told anything else"),
        ({"transfers": {"ended": 17, "unsampled": 0, "bytes": 4095}}, _READ_BYTES),
        ({"transfers": {"ended": 16, "unsampled": 1, "bytes": 4096}}, _READ_BYTES),
    ],
)
def test_what_the_ranks_of_a_pull_were_told(changes: dict[str, Any], check: str) -> None:
    assert failed_checks(verdict(changes)) == [check]


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"prefill0": {"finished": ["req-0", "req-1"]}}, _SENT),
        ({"prefill0": {"finished": ["req-0", "req-1", "req-2", "req-3"]}}, _SENT),
        ({"spare1": {"finished": []}}, _SENT),
        ({"prefill0": {"expired": ["req-9"]}}, _LEASES),
        ({"spare1": {"left": 1}}, _LEASES),
        ({"spare1": {"violations": NO_VIOLATIONS | {EARLY: 1}}}, _SOURCES),
        ({"spare1": {"bytes": 1023}}, _WRITTEN_BYTES),
        ({"prefill0": {"unsampled": 1}}, _WRITTEN_BYTES),
    ],
)
def test_what_the_ranks_of_a_push_sent(changes: dict[str, Any], check: str) -> None:
    assert failed_checks(verdict(changes, PUSH)) == [check]


def test_without_a_kill_no_request_may_fail() -> None:
    calm = DemoSettings(ranks=2, requests=10, kill=False)
    all_well: dict[str, Any] = {
        "fault": None,
        "failed": [],
        "finished": 10,
        "counters": {"finished_requests": 10},
    }
    assert failed_checks(verdict(all_well, calm)) == []
    assert failed_checks(verdict({"fault": None}, calm)) == ["no request failed"]


def test_one_rank_has_no_sibling_to_wait_for() -> None:
    alone = DemoSettings(ranks=1, requests=10)
    assert failed_checks(verdict({"fault": GOOD["fault"] | {"deferred": 0}}, alone)) == []


def shown(result: DemoResult) -> str:
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115 - closed below
    show(result, console)
    console.file.close()
    return console.export_text()


def test_report_of_a_push_shows_what_the_ranks_swept() -> None:
    changes: dict[str, Any] = {
        "prefill0": {"sweep_us": {"sweeps": 7, "min": 4.0, "median": 6.0, "max": 9.0}},
        "spare1": {"sweep_us": {"sweeps": 0, "min": 0.0, "median": 0.0, "max": 0.0}},  # it had nothing to do
        "fault": GOOD["fault"] | {"told_of_death": True},
    }
    text = shown(verdict(changes, PUSH))
    for row, value in (
        ("requests", "10, written by 2 ranks each"),
        ("sweeps", "7 by the ranks"),
        ("time per sweep", r"median 6.0 us \(min 4.0, max 9.0\)"),
        ("backend", "cython, scan all"),
        ("killed", "prefill1, with 4 WRITEs in flight"),
        ("death seen", "by the end of its process"),
    ):
        assert re.search(rf"│ {row} +│ {value}", text), (row, text)


def test_report_names_the_failed_check_and_the_problems() -> None:
    changes: dict[str, Any] = {
        "left": 1,
        "problems": ["block 3 [bold]was[/] odd"],
        "spare1": {"problems": ["block 4 too"]},
    }
    text = shown(verdict(changes, PUSH))
    assert "FAILED no request and no handle is left" in text
    assert "block 3 [bold]was[/] odd" in text
    assert "spare1: block 4 too" in text
    assert "some checks FAILED" in text
