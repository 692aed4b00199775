"""The scenarios of tests/cases through vLLM's workers; which of them make no sense there is in `NOT_HERE`."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from tests.cases.runner import Scenario, UnknownStepError, scenarios
from tests.vllm.scenarios import NOT_HERE, runner_of

APIS = ("get_transfer_results", "get_finished")
HERE = [
    scenario
    for kind in ("receive", "send")
    for scenario in scenarios(kind)
    if scenario["name"] not in NOT_HERE
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", ["cython", "python"])
@pytest.mark.parametrize("scenario", HERE, ids=lambda scenario: str(scenario["name"]))
def test_a_scenario(
    scenario: Scenario, backend: str, scan: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner_of(scenario, monkeypatch.setattr, api, backend=backend, scan=scan).run(scenario["steps"])


def test_every_scenario_is_run_or_named() -> None:
    names = {scenario["name"] for kind in ("receive", "send") for scenario in scenarios(kind)}
    assert set(NOT_HERE) <= names
    assert len(HERE) + len(NOT_HERE) == len(names) == 33


WRONG = {
    "failed_sibling_waits_for_done": (3, {"poll": {"failed": ["R"], "invalid": [[1, 2, 3]]}}),
    "lost_handle_is_quarantined": (4, {"released": [101]}),
    "success_sends_notifs_once": (5, {"sent": [["P0", "R:1"]]}),
    "full_prefix_hit": (5, {"counts": {"failed_notifs": 0}}),
    "push_success": (3, {"poll": {"finished": ["R"]}}),
    "failed_send_is_never_finished": (7, {"poll": {"finished": ["R"]}}),
    "no_write_after_expiry": (3, {"post": "R", "handles": [201], "returns": True}),
    "push_consumer_dead_producer": (5, {"poll": {}}),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_comes_out_otherwise_is_a_failure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (scenario,) = [scenario for scenario in HERE if scenario["name"] == name]
    at, step = WRONG[name]
    steps = [*scenario["steps"][:at], step]
    with pytest.raises(AssertionError, match=f"step {at + 1},"):
        runner_of(scenario, monkeypatch.setattr, APIS[0], backend="python").run(steps)


def test_a_step_that_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(HERE[0], monkeypatch.setattr, APIS[0], backend="python")
    with pytest.raises(UnknownStepError):
        runner.run([{"abort": "R"}])
