"""Every scenario of the JSON files, on both backends, with both scans, with both kinds of handles."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kvfast.notifs import BadNotif, Consumed, Heartbeat, parse
from kvfast_ext import backend_name
from tests.cases.runner import (
    COMMON_STEPS,
    RECEIVE_STEPS,
    SEND_STEPS,
    CaseRunner,
    Scenario,
    UnknownStepError,
    receive_runner,
    scenarios,
    send_runner,
)

MakeRunner = Callable[..., CaseRunner]


@pytest.fixture(params=[False, True], ids=["ints", "objects"])
def setup(request: pytest.FixtureRequest, backend: ModuleType, scan: str) -> dict[str, Any]:
    return {"backend": backend_name(backend), "scan": scan, "handle_objects": request.param}


def by_name(scenario: Scenario) -> str:
    return str(scenario["name"])


@pytest.mark.parametrize("scenario", scenarios("receive"), ids=by_name)
def test_receive(scenario: Scenario, setup: dict[str, Any]) -> None:
    receive_runner(scenario["options"], **setup).run(scenario["steps"])


@pytest.mark.parametrize("scenario", scenarios("send"), ids=by_name)
def test_send(scenario: Scenario, setup: dict[str, Any]) -> None:
    send_runner(scenario["options"], **setup).run(scenario["steps"])


@pytest.mark.parametrize(
    "case",
    [case for scenario in scenarios("notif") for case in scenario["inputs"]],
    ids=lambda case: repr(case.get("bytes", case.get("hex"))),
)
def test_notif(case: dict[str, Any]) -> None:
    raw = bytes.fromhex(case["hex"]) if "hex" in case else case["bytes"].encode()
    found = parse(raw)
    if case["is"] == "consumed":
        assert found == Consumed(case["req_id"], case["count"])
    elif case["is"] == "heartbeat":
        assert found == Heartbeat(tuple(case["req_ids"]))
    else:
        assert case["is"] == "bad"
        assert isinstance(found, BadNotif)
        assert found.raw == raw


def test_all_scenarios_are_found() -> None:
    assert {kind: len(scenarios(kind)) for kind in ("receive", "send", "notif")} == {
        "receive": 24,
        "send": 9,
        "notif": 2,
    }


@pytest.mark.parametrize("make", [receive_runner, send_runner])
@pytest.mark.parametrize(
    "step",
    [
        {"polls": {}},
        {},
        {"poll": {"lost": []}},
        {"advance": 1, "faster": True},
        {"states": {}, "poll": {}},
        {"track": "R", "colour": "red"},
    ],
)
def test_a_step_that_is_not_known_is_an_error(make: MakeRunner, step: dict[str, Any]) -> None:
    runner = make({}, backend="python", scan="all", handle_objects=False)
    with pytest.raises(UnknownStepError):
        runner.run([step])


def test_steps_of_the_other_kind_are_errors() -> None:
    assert set(RECEIVE_STEPS) - set(SEND_STEPS)
    assert set(SEND_STEPS) - set(RECEIVE_STEPS) == {"heartbeat"}
    assert set(COMMON_STEPS) == set(RECEIVE_STEPS) & set(SEND_STEPS)


@pytest.mark.parametrize(
    "steps",
    [
        [{"poll": {"finished": ["R"]}}],
        [{"poll": {"invalid": [[1]]}}],
        [{"released": [101]}],
        [{"sent": [["P0", "R:1"]]}],
        [{"counts": {"failed_transfers": 1}}],
        [{"track": "R", "blocks": [[1]]}, {"post": "R", "handles": [101], "returns": False}],
        [{"track": "R", "blocks": [[1]]}, {"complete": "R"}, {"poll": {}}],
        [{"track": "R", "blocks": [[1]]}, {"fail": "R"}, {"poll": {"failed": ["R"]}}],
    ],
)
def test_what_comes_out_otherwise_is_a_failure(steps: list[dict[str, Any]]) -> None:
    runner = receive_runner({}, backend="python", scan="all", handle_objects=False)
    with pytest.raises(AssertionError):
        runner.run(steps)
    runner.drain()
