"""The soak on real NIXL with a fixed seed: kvfast corrupts nothing, and what it is compared with does.

It takes three minutes and runs where ``KVFAST_SOAK=1`` asks for it. ``KVFAST_SOAK_REQUESTS`` makes it longer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from kvfast.testing.soak.run import SoakResult, run_soak
from kvfast.testing.soak.settings import MODES, POLICIES, SoakSettings
from tests.cli.command import children_of, command, run, wait_until_gone
from tests.nixl.rank import nixl_missing

pytestmark = [
    pytest.mark.skipif(os.environ.get("KVFAST_SOAK") != "1", reason="takes minutes: KVFAST_SOAK=1 runs it"),
    pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed"),
]

REQUESTS = int(os.environ.get("KVFAST_SOAK_REQUESTS", "1000"))
REQUESTS_OF_OTHERS = 300  # they corrupt something long before
SEED = 7


def soak(mode: str, **settings: object) -> SoakResult:
    chosen = {"mode": mode, "requests": REQUESTS, "seed": SEED, "fault_every": 30, **settings}
    return run_soak(SoakSettings(**chosen))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_kvfast_corrupts_nothing(mode: str) -> None:
    result = soak(mode)
    assert result.problems == {"corrupted": 0, "lost": 0, "reported twice": 0, "leaked": 0}
    assert result.ok
    measured = result.measured
    assert measured["posted"] == REQUESTS
    assert measured["finished"] + measured["failed"] + measured["aborted"] == REQUESTS
    assert measured["failed"] > 0, "no fault has hit: the soak proves nothing"
    assert measured["canaries_checked"] > 0
    settings = result.settings
    assert set(result.injected) == {*settings.event_faults, *settings.request_faults}, "a fault never came"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "kvfast"])
def test_the_other_policies_corrupt(policy: str, mode: str) -> None:
    result = soak(mode, policy=policy, requests=REQUESTS_OF_OTHERS)
    assert result.problems["corrupted"] > 0
    assert not result.ok
    found = result.measured["corruptions"][0]
    assert found["wrong_bytes"] > 0
    assert found["rank"].startswith("prefill")


def test_kvfast_corrupts_when_its_quarantine_is_switched_off() -> None:
    # A soak of kvfast that can't fail would prove nothing either.
    result = soak("pull", faults=("remove-behind",), lost_s=0.0, fault_every=20, requests=REQUESTS_OF_OTHERS)
    assert result.problems["corrupted"] > 0
    assert result.quarantine["blocks"] > 0


def test_the_command_prints_its_findings_as_json() -> None:
    ended = run(
        "soak", "--mode", "pull", "--requests", "60", "--faults", "abort,prepare", "--rate", "5", "--json"
    )
    found = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    (result,) = found["soaks"]
    assert result["ok"]
    assert set(result["injected"]) == {"abort", "prepare"}
    assert found["verdicts"] == ["pull, kvfast: nothing corrupted, lost, reported twice or leaked"]


def test_ctrl_c_leaves_no_process_behind() -> None:
    options = ["--mode", "pull", "--requests", "100000", "--json"]
    running = subprocess.Popen(command("soak", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        while len(children := children_of(running.pid)) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
        assert running.returncode == 130
        assert len(children) == 5
        assert wait_until_gone(children) == []
    finally:
        running.kill()
        running.communicate()
