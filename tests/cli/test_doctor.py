"""`kvfast doctor`: what it finds, and that it survives what it looks at."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvfast import doctor
from kvfast.demo.errors import DeadlineError, ProcessEndedError
from kvfast.doctor import Findings, examine, judge_ucx, parse_ucx_log, show
from kvfast_ext import cython_available
from tests.cli.command import first_on_path, run, run_json
from tests.nixl.rank import nixl_missing

needs_nixl = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")

UCX_LOG = """
[1.2] [vm:1:0] ucp_context.c:2753 UCX  INFO  Version 1.23.0 (loaded from /x/libucp.so)
[1.2] [vm:1:0] ucp_context.c:1 UCX  WARN  network device 'kvfast_none' is not available, please use one or \
more of: 'eth0'(tcp), 'mlx5_0:1'(ib)
[1.2] [vm:1:0] ucp_context.c:1 UCX  WARN  transport 'kvfast_none' is not available, please use one or more \
of: cma, rc, shm, tcp
"""


@needs_nixl
@pytest.mark.parametrize("chosen", ["cython", "python"])
def test_what_it_finds_here(chosen: str) -> None:
    if chosen == "cython" and not cython_available():
        pytest.skip("the cython backend is not built")
    code, found, log = run_json("doctor", env={"KVFAST_BACKEND": chosen})
    assert (code, found["ok"]) == (0, True), (found, log)
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["nixl"] == importlib.metadata.version("nixl")
    assert found["extension"]["installed"] is cython_available()
    assert found["extension"]["loads"] is cython_available()
    assert found["extension"]["KVFAST_BACKEND"] == chosen
    agent = found["agent"]
    assert (agent["backend"], agent["state"], agent["bytes_arrived"]) == (chosen, "DONE", True)
    assert re.fullmatch(r"nixl_\w+", agent["nixl_package"])
    native = chosen == "cython"
    assert (agent["ops_at_bind"], agent["ops"]) == (("nixl", "nixl") if native else ("python", "python"))
    assert agent["self_check_passed"] is (True if native else None)
    assert "tcp" in found["ucx"]["transports"]
    assert ["lo", "tcp"] in found["ucx"]["devices"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", found["ucx"]["version"])
    assert "ib" in found["ucx"]["modules"]


@needs_nixl
def test_for_people() -> None:
    ended = run("doctor", env={"COLUMNS": "80"})
    assert ended.returncode == 0, ended.stderr
    for row in ("python", "nixl", "backend", "ops", "ops_reason", "self_check_passed", "transports"):
        assert re.search(rf"^  {row} +\S", ended.stdout, re.MULTILINE), row
    assert ended.stdout.rstrip().endswith("usable")


@needs_nixl
def test_transports_that_no_agent_can_use_are_a_problem_with_the_setting_named() -> None:
    code, found, log = run_json("doctor", env={"UCX_TLS": "shm"})
    assert (code, found["ok"]) == (1, False)
    (problem,) = [item for item in found["advice"] if item["problem"]]
    assert "UCX_TLS=shm" in problem["what"]
    assert problem["do"]
    assert found["ucx"]["settings"]["UCX_TLS"] == "shm"
    assert "tcp" in found["ucx"]["transports"]  # what there is, not what is allowed
    assert "Traceback" not in log


@needs_nixl
def test_a_bad_backend_setting_is_a_problem() -> None:
    code, found, log = run_json("doctor", env={"KVFAST_BACKEND": "rust"})
    assert (code, found["ok"]) == (1, False)
    assert any(
        "'rust'" in item["what"] and "unset KVFAST_BACKEND" in item["do"]
        for item in found["advice"]
        if item["problem"]
    )
    assert "Traceback" not in log


def test_without_nixl(hide_nixl: dict[str, str]) -> None:
    code, found, log = run_json("doctor", env=hide_nixl)
    assert (code, found["ok"]) == (1, False)
    assert any("pip install nixl" in item["what"] for item in found["advice"] if item["problem"])
    assert "Traceback" not in log


def test_a_probe_that_crashes_is_a_finding(tmp_path: Path) -> None:
    # A NIXL that ends the process as it is imported.
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl" / "__init__.py").write_text("import os\nos.abort()\n")
    code, found, log = run_json("doctor", env=first_on_path(tmp_path))
    assert (code, found["ok"]) == (1, False)
    assert any("was killed by SIGABRT" in item["what"] for item in found["advice"] if item["problem"])
    assert "Traceback" not in log


def test_a_probe_that_hangs_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl" / "__init__.py").write_text("import signal\nsignal.pause()\n")
    code, found, _ = run_json("doctor", "--timeout", "3", env=first_on_path(tmp_path))
    assert (code, found["ok"]) == (1, False)
    assert any("said nothing for 3 s" in item["what"] for item in found["advice"] if item["problem"])


def test_bad_options() -> None:
    ended = run("doctor", "--timeout", "-1")
    assert ended.returncode == 2
    assert "'--timeout'" in ended.stderr


# ---- without processes: what each answer of a probe leads to

GOOD_AGENT = {
    "backend": "cython",
    "nixl_package": "nixl_cu13",
    "ops_at_bind": "nixl",
    "ops": "nixl",
    "ops_reason": "native calls",
    "self_check_passed": True,
    "bytes_arrived": True,
    "state": "DONE",
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Make probes answer from a dict, and return it: an answer, or an error to raise."""
    by_probe: dict[str, Any] = {
        "extension": {"backend": "cython"},
        "agent": dict(GOOD_AGENT),
        "ucx": {"modules": ["ib"]},
    }

    def probe(name: str, timeout_s: float, env: dict[str, str] | None = None) -> tuple[dict[str, Any], str]:
        if isinstance(by_probe[name], Exception):
            raise by_probe[name]
        return by_probe[name], UCX_LOG

    versions = dict.fromkeys(("python", "kvfast", "numpy", "nixl", "nixl-cu13"), "1.5.1")
    monkeypatch.setattr(doctor, "_probe", probe)
    monkeypatch.setattr(doctor, "cython_available", lambda: True)
    monkeypatch.setattr(doctor, "_versions", lambda: versions)
    for name in ("UCX_TLS", "UCX_NET_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    by_probe["versions"] = versions
    return by_probe


def advice(found: Findings) -> list[tuple[bool, str]]:
    return [(item.problem, item.what) for item in found.advice]


def test_nothing_to_say(answers: dict[str, Any]) -> None:
    found = examine()
    assert advice(found) == []
    assert found.ok
    assert found.ucx["transports"] == ["cma", "rc", "shm", "tcp"]


def test_an_extension_that_does_not_load(answers: dict[str, Any]) -> None:
    answers["extension"] = ProcessEndedError("the extension probe was killed by SIGSEGV")
    found = examine()
    ((problem, what),) = advice(found)
    assert problem
    assert "does not load" in what
    assert "SIGSEGV" in what
    assert found.extension["loads"] is False


def test_an_extension_that_is_not_there_is_a_note(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "cython_available", lambda: False)
    answers["agent"] |= {"backend": "python", "ops": "python", "self_check_passed": None}
    found = examine()
    ((problem, what),) = advice(found)
    assert not problem
    assert "not installed" in what
    assert found.ok


def test_python_ops_of_the_compiled_backend_are_a_note_with_the_reason(answers: dict[str, Any]) -> None:
    answers["agent"] |= {"ops": "python", "ops_reason": "telemetry differs", "self_check_passed": False}
    found = examine()
    ((problem, what),) = advice(found)
    assert not problem
    assert "telemetry differs" in what


def test_bytes_that_do_not_arrive_are_a_problem(answers: dict[str, Any]) -> None:
    answers["agent"] |= {"bytes_arrived": False, "state": "REMOTE_DISCONNECT"}
    ((problem, what),) = advice(examine())
    assert problem
    assert "REMOTE_DISCONNECT" in what


def test_nixl_packages_of_two_versions_are_a_note(answers: dict[str, Any]) -> None:
    answers["versions"]["nixl-cu13"] = "1.4.1"
    ((problem, what),) = advice(examine())
    assert not problem
    assert "1.4.1" in what


def test_an_agent_that_takes_too_long_is_a_problem(answers: dict[str, Any]) -> None:
    answers["agent"] = DeadlineError("the agent probe said nothing for 60 s")
    found = examine()
    assert advice(found) == [(True, "the agent probe said nothing for 60 s")]
    assert found.agent == {"error": "the agent probe said nothing for 60 s"}


def test_ucx_listing() -> None:
    assert parse_ucx_log(UCX_LOG) == {
        "version": "1.23.0",
        "transports": ["cma", "rc", "shm", "tcp"],
        "devices": [("eth0", "tcp"), ("mlx5_0:1", "ib")],
    }
    assert parse_ucx_log("nothing of the kind") == {"version": None, "transports": [], "devices": []}


@pytest.mark.parametrize(
    ("transports", "tls", "words"),
    [
        (["rc", "tcp"], None, []),
        (["rc", "tcp"], "tcp,rc", []),
        (["rc", "tcp"], "^tcp", []),
        (["rc", "tcp"], "all", []),
        (["rc", "tcp"], "tcp,cuda_copy", ["UCX_TLS names cuda_copy,"]),
        (["shm", "tcp"], None, ["UCX has no RDMA transport"]),
        ([], None, ["UCX did not say"]),
    ],
)
def test_ucx_advice(transports: list[str], tls: str | None, words: list[str]) -> None:
    settings = {} if tls is None else {"UCX_TLS": tls}
    found = judge_ucx({"transports": transports, "settings": settings})
    assert [item.what.startswith(start) for item, start in zip(found, words, strict=True)] == [True] * len(
        words
    )
    assert not any(item.problem for item in found)


def test_findings_for_people(answers: dict[str, Any]) -> None:
    answers["agent"] |= {"bytes_arrived": False, "state": "[red]ERR[/]"}
    found = examine()
    console = Console(record=True, width=80)
    show(found, console)
    text = console.export_text()
    assert "problem a READ between two agents ended as [red]ERR[/]" in text
    assert "eth0(tcp) mlx5_0:1(ib)" in text
    assert text.rstrip().endswith("there are problems")
