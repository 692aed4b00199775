"""`kvfast demo` on real NIXL: what it prints, what it exits with, what it leaves behind.

A run starts four processes and more, so each of them proves several things.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from kvfast_ext import cython_available
from tests.cli.command import children_of, command, run, run_json, wait_until_gone
from tests.nixl.rank import nixl_missing

needs_nixl = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")
FULL = ("demo", "--requests", "80")


def need(backend: str) -> None:
    if backend == "cython" and not cython_available():
        pytest.skip("the cython backend is not built")


def check_killed(found: dict[str, Any], requests: int) -> None:
    """Check a run in which a rank was killed: an eighth of the requests meets that, an eighth the spare."""
    assert found["ok"], found
    assert all(found["checks"].values())
    assert found["problems"] == []
    assert found["finished"] + found["failed"] == requests
    assert found["failed"] >= requests // 8
    assert found["finished"] >= requests // 2 + requests // 8
    fault = found["fault"]
    assert len(fault["in_flight_when_killed"]) >= found["failed"]
    assert fault["deferred"] >= requests // 8
    assert fault["told_of_death"] is False
    assert found["dead"] == [fault["killed"]]
    assert found["counters"]["dead_peers"] == 1
    assert found["blocks_given"] > 2 * found["settings"]["pool_blocks"]  # they are used again


@needs_nixl
@pytest.mark.parametrize(("backend_name", "scan_name"), [("cython", "watch"), ("python", "all")])
def test_pull_with_a_killed_rank(backend_name: str, scan_name: str) -> None:
    need(backend_name)
    code, found, log = run_json(*FULL, "--backend", backend_name, "--scan", scan_name)
    assert code == 0, (found, log)
    check_killed(found, 80)
    assert (found["backend"], found["scan"]) == (backend_name, scan_name)
    if backend_name == "cython":
        assert (found["ops"], found["ops_reason"].partition(" ")[0]) == ("nixl", "native"), found
    assert found["transfers"]["bytes"] == found["bytes_checked"] > 0
    assert found["counters"]["failed_transfers"] == found["failed"]
    assert found["sweep_us"]["sweeps"] > 0
    # Decode's rows, by rank: the spare has taken the share of the killed one.
    killed = int(found["fault"]["killed"].removeprefix("prefill"))
    assert sorted(found["ranks"]) == sorted({"prefill0", "prefill1", f"spare{killed}"} - {f"prefill{killed}"})
    assert all(told["finished"] for told in found["ranks"].values())


@needs_nixl
@pytest.mark.parametrize(("backend_name", "scan_name"), [("cython", "all"), ("python", "watch")])
def test_push_with_a_killed_rank(backend_name: str, scan_name: str) -> None:
    need(backend_name)
    code, found, log = run_json(*FULL, "--push", "--backend", backend_name, "--scan", scan_name)
    assert code == 0, (found, log)
    check_killed(found, 80)
    assert found["transfers"]["ended"] == 0  # decode has no handles of its own
    for rank in found["ranks"].values():
        assert (rank["backend"], rank["scan"]) == (backend_name, scan_name)
        assert rank["ops"] == ("nixl" if backend_name == "cython" else "python"), rank["ops_reason"]
        assert rank["finished"]
        assert rank["expired"] == []
        assert rank["counters"]["transfers"] == len(rank["finished"])
    assert sum(rank["bytes"] for rank in found["ranks"].values()) > found["bytes_checked"] // 2


@needs_nixl
def test_no_kill_and_metrics_that_are_held() -> None:
    options = ("--requests", "16", "--no-kill", "--ranks", "3", "--metrics-port", "0", "--hold", "3000")
    with subprocess.Popen(
        command("demo", *options, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        assert demo.stdout is not None
        said = list(iter(demo.stderr.readline, "the metrics stay up for 3000 s, or until Ctrl-C\n"))
        (url,) = re.findall(r"^metrics: (http://127\.0\.0\.1:\d+/metrics)$", "".join(said), re.MULTILINE)
        with urllib.request.urlopen(url) as page:
            metrics = page.read().decode()
        demo.send_signal(signal.SIGINT)
        found = json.loads(demo.stdout.read())
        assert demo.wait() == 0
    assert found["ok"], found
    assert (found["finished"], found["failed"], found["fault"]) == (16, 0, None)
    assert {name: len(told["read"]) for name, told in found["ranks"].items()} == {
        "prefill0": 16,
        "prefill1": 16,
        "prefill2": 16,
    }
    checked = 3 * found["blocks_given"] * found["settings"]["block_bytes"]
    assert found["bytes_checked"] == checked
    assert found["transfers"] == {"ended": 48, "unsampled": 0, "bytes": checked}
    assert 'kvfast_finished_requests_total{role="receiver"} 16.0' in metrics
    (exported,) = re.findall(r'^kvfast_bytes_total\{role="receiver"\} (\S+)$', metrics, re.MULTILINE)
    assert float(exported) == checked


@needs_nixl
def test_push_without_a_kill_as_people_see_it() -> None:
    ended = run("demo", "--push", "--no-kill", "--requests", "8", env={"COLUMNS": "120"})
    assert ended.returncode == 0, ended.stderr
    rows = {"requests": "8, written by 2 ranks each", "finished": "8", "failed": "0", "sweeps": "[1-9]"}
    for row, value in (
        rows | dict.fromkeys(("bytes checked", "time per sweep", "backend", "ops"), r"\S")
    ).items():
        assert re.search(rf"│ {row} +│ {value}", ended.stdout), (row, ended.stdout)
    assert "every check held" in ended.stdout
    assert "FAILED" not in ended.stdout
    assert "killed" not in ended.stdout


@needs_nixl
def test_the_fewest_requests_still_meet_the_fault_as_people_see_it() -> None:
    ended = run("demo", "--requests", "1", env={"COLUMNS": "120"})
    assert ended.returncode == 0, ended.stderr
    rows = {"failed": "1", "finished": "0", "killed": r"prefill\d, with 1 READs in flight", "deferred": "1 "}
    for row, value in (rows | {"death seen": "by NIXL's disconnect exception"}).items():
        assert re.search(rf"│ {row} +│ {value}", ended.stdout), (row, ended.stdout)


@needs_nixl
@pytest.mark.parametrize("mode", [(), ("--push",)])
def test_one_rank(mode: tuple[str, ...]) -> None:
    code, found, log = run_json("demo", "--requests", "2", "--ranks", "1", *mode)
    assert code == 0, (found, log)
    assert found["fault"]["killed"] == "prefill0"
    assert found["fault"]["deferred"] == 0  # there is no sibling to wait for
    assert found["failed"] >= 1
    assert found["finished"] + found["failed"] == 2


@needs_nixl
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_it_is_broken_off(how: signal.Signals) -> None:
    # More than it could do before the signal comes: it is sent when the last child has been started.
    mode = ("--push",) if how == signal.SIGTERM else ()
    with subprocess.Popen(command("demo", "--requests", "100000", *mode), stderr=subprocess.PIPE) as demo:
        children: list[int] = []
        while len(children) < 4 and demo.poll() is None:  # two ranks, the spare, decode
            children = children_of(demo.pid)
        assert len(children) == 4
        os.kill(demo.pid, how)
        assert demo.stderr is not None
        said = demo.stderr.read().decode()
        code = demo.wait()
    if how == signal.SIGINT:
        assert code == 130, said
        assert "interrupted" in said
        # It has reaped them: not even a zombie is left.
        assert [pid for pid in children if os.path.exists(f"/proc/{pid}")] == []
    else:
        assert code == -how
    assert wait_until_gone(children) == []


@needs_nixl
def test_a_deadline_ends_it_with_words() -> None:
    code, found, log = run_json("demo", "--requests", "100000", "--no-kill", "--timeout", "3")
    assert code == 1
    assert found["ok"] is False
    assert "did not end within 3 s (so far: " in found["error"]
    assert found["error"] in log


@needs_nixl
def test_ucx_that_can_not_start_is_told() -> None:
    code, found, _ = run_json("demo", "--requests", "16", env={"NIXL_PLUGIN_DIR": "/nowhere"})
    assert code == 2, found
    assert found["ok"] is False
    assert re.search(
        r"prefill\d: (this NIXL has no backend UCX|NIXL could not make the agent)", found["error"]
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--ranks", "33"], "'--ranks'"),
        (["--ranks", "two"], "'--ranks'"),
        (["--requests", "0"], "'--requests'"),
        (["--backend", "rust"], "'--backend'"),
        (["--scan", "none"], "'--scan'"),
        (["--timeout", "0"], "'--timeout'"),
        (["--seed", "x"], "'--seed'"),
        (["--metrics-port", "65536"], "'--metrics-port'"),
        (["--hold", "-1", "--metrics-port", "0"], "'--hold'"),
        (["--hold", "5"], "it needs --metrics-port"),
        (["--colour"], "--colour"),
    ],
)
def test_bad_options(options: list[str], named: str) -> None:
    ended = run("demo", *options)
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bad_environment_variable() -> None:
    code, found, log = run_json("demo", env={"KVFAST_BACKEND": "rust"})
    assert code == 2
    assert "KVFAST_BACKEND must be one of auto, cython, python, not 'rust'" in found["error"]
    assert "Traceback" not in log


def test_without_nixl(hide_nixl: dict[str, str]) -> None:
    code, found, log = run_json("demo", "--backend", "python", env=hide_nixl)
    assert code == 2
    assert "NIXL is not installed: pip install nixl" in found["error"]
    assert "Traceback" not in log


def test_metrics_without_prometheus_client(hide: Callable[[str], dict[str, str]]) -> None:
    code, found, log = run_json("demo", "--metrics-port", "0", env=hide("prometheus_client"))
    assert code == 2
    assert found == {
        "ok": False,
        "error": 'Prometheus export needs prometheus_client: pip install "kvfast[metrics]"',
    }
    assert "Traceback" not in log


def test_help_says_what_is_checked_and_what_it_exits_with() -> None:
    ended = run("demo", "--help", env={"COLUMNS": "100"})
    assert ended.returncode == 0
    for words in ("every byte", "Exit status", "--ranks", "--no-kill", "--push", "--json", "[default: 128"):
        assert words in ended.stdout
