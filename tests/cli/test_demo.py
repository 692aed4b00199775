"""`kvfast demo` on real NIXL: what it prints, what it exits with, what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import Any

import pytest

from kvfast_ext import backend_name, cython_available
from tests.cli.command import children_of, command, run, run_json, wait_until_gone
from tests.nixl.rank import nixl_missing

needs_nixl = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")
SMALL = ("demo", "--requests", "16")


@pytest.fixture
def backend_option(backend: Any) -> tuple[str, str]:
    return ("--backend", backend_name(backend))


@needs_nixl
def test_a_killed_rank(backend_option: tuple[str, str], scan: str) -> None:
    code, found, log = run_json(*SMALL, *backend_option, "--scan", scan)
    assert (code, found["ok"]) == (0, True), (found, log)
    assert found["backend"] == backend_option[1]
    assert found["scan"] == scan
    assert found["finished"] + found["failed"] == 16
    # A quarter of the requests is posted only after the rank is stopped, and can't finish.
    assert found["failed"] >= 4
    assert found["finished"] >= 8
    fault = found["fault"]
    assert fault["in_flight_when_killed"] >= 4
    assert fault["deferred"] >= 4
    assert found["failing"] == [fault["killed"]]
    assert all(found["checks"].values())
    assert found["problems"] == []
    assert found["sweeps"] > 0
    assert found["bytes_checked"] > 0


@needs_nixl
def test_no_kill(backend_option: tuple[str, str]) -> None:
    code, found, log = run_json(*SMALL, *backend_option, "--no-kill", "--ranks", "3")
    assert (code, found["ok"]) == (0, True), (found, log)
    assert (found["finished"], found["failed"], found["fault"]) == (16, 0, None)
    assert {name: len(requests) for name, requests in found["read_from"].items()} == {
        "prefill0": 16,
        "prefill1": 16,
        "prefill2": 16,
    }
    blocks = found["blocks_given"]
    assert found["bytes_checked"] == 3 * blocks * found["settings"]["block_bytes"]
    assert found["transfers"] == {"sampled": 48, "unsampled": 0, "bytes": found["bytes_checked"]}


@needs_nixl
def test_blocks_are_used_again() -> None:
    code, found, log = run_json("demo", "--requests", "80", "--no-kill")
    assert code == 0, (found, log)
    assert found["blocks_given"] > 2 * found["settings"]["pool_blocks"]


@needs_nixl
@pytest.mark.parametrize("requests", [1, 2])
def test_the_fewest_requests_still_meet_the_fault(requests: int) -> None:
    code, found, log = run_json("demo", "--requests", str(requests))
    assert code == 0, (found, log)
    assert found["finished"] + found["failed"] == requests
    assert found["failed"] >= 1


@needs_nixl
def test_one_rank() -> None:
    code, found, log = run_json(*SMALL, "--ranks", "1")
    assert code == 0, (found, log)
    assert found["fault"]["killed"] == "prefill0"
    assert found["fault"]["deferred"] == 0  # there is no sibling to wait for
    assert found["failed"] >= 4


@needs_nixl
def test_the_native_way_is_taken_where_it_is_built() -> None:
    if not cython_available():
        pytest.skip("the cython backend is not built")
    _, found, _ = run_json(*SMALL, "--backend", "cython")
    assert (found["ops"], found["ops_reason"].partition(" ")[0]) == ("nixl", "native"), found["ops_reason"]


@needs_nixl
def test_the_table_for_people() -> None:
    ended = run(*SMALL, env={"COLUMNS": "120"})
    assert ended.returncode == 0, ended.stderr
    for row in (
        "finished",
        "failed",
        "bytes checked",
        "sweeps",
        "time per sweep",
        "backend",
        "ops",
        "killed",
    ):
        assert re.search(rf"│ {row} +│ \S", ended.stdout), row
    assert "every check held" in ended.stdout
    assert "FAILED" not in ended.stdout


@needs_nixl
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_it_is_broken_off(how: signal.Signals) -> None:
    # More than it could do before the signal comes: it is sent when the last child has been started.
    with subprocess.Popen(command("demo", "--requests", "100000"), stderr=subprocess.PIPE) as demo:
        children: list[int] = []
        while len(children) < 4 and demo.poll() is None:  # two ranks, the spare, decode
            children = children_of(demo.pid)
        assert len(children) == 4
        os.kill(demo.pid, how)
        assert demo.stderr is not None
        said = demo.stderr.read().decode()
        code = demo.wait()
    assert wait_until_gone(children) == []
    if how == signal.SIGINT:
        assert code == 130, said
        assert "interrupted" in said
    else:
        assert code == -how


@needs_nixl
def test_no_zombie_is_left_after_ctrl_c() -> None:
    # The parent of the demo is this process, so what the demo has not reaped would come to light here.
    with subprocess.Popen(command("demo", "--requests", "100000"), stderr=subprocess.DEVNULL) as demo:
        children: list[int] = []
        while len(children) < 4 and demo.poll() is None:
            children = children_of(demo.pid)
        demo.send_signal(signal.SIGINT)
        assert demo.wait() == 130
    left = [pid for pid in children if os.path.exists(f"/proc/{pid}")]
    assert left == []


@needs_nixl
def test_a_deadline_ends_it_with_words() -> None:
    code, found, log = run_json("demo", "--requests", "100000", "--no-kill", "--timeout", "8")
    assert code == 1
    assert found["ok"] is False
    assert "did not end within 8 s (so far: " in found["error"]
    assert found["error"] in log


@needs_nixl
def test_ucx_that_can_not_start_is_told() -> None:
    code, found, _ = run_json(*SMALL, env={"NIXL_PLUGIN_DIR": "/nowhere"})
    assert code == 2, found
    assert found["ok"] is False
    assert re.search(
        r"prefill\d: (this NIXL has no backend UCX|NIXL could not make the agent)", found["error"]
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--ranks", "0"], "'--ranks'"),
        (["--ranks", "33"], "'--ranks'"),
        (["--ranks", "two"], "'--ranks'"),
        (["--requests", "-1"], "'--requests'"),
        (["--requests", "0"], "'--requests'"),
        (["--backend", "rust"], "'--backend'"),
        (["--scan", "none"], "'--scan'"),
        (["--timeout", "0"], "'--timeout'"),
        (["--seed", "x"], "'--seed'"),
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
    code, found, log = run_json(*SMALL, "--backend", "python", env=hide_nixl)
    assert code == 2
    assert 'NIXL is not installed: pip install "kvfast[nixl]"' in found["error"]
    assert "Traceback" not in log


def test_help_says_what_is_checked_and_what_it_exits_with() -> None:
    ended = run("demo", "--help", env={"COLUMNS": "100"})
    assert ended.returncode == 0
    for words in ("every byte", "Exit status", "--ranks", "--no-kill", "--json", "[default: 128"):
        assert words in ended.stdout
