"""open_agent where NIXL is missing, old or broken, and with bad arguments: no NIXL is needed."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvfast import BackendUnavailableError, open_agent
from tests.cli.command import run_python


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": 7}, TypeError, "name must be a string, not 7"),
        ({"name": ""}, ValueError, "name must not be empty, not ''"),
        ({"backends": "UCX"}, TypeError, "backends must be a sequence of names, not 'UCX'"),
        ({"backends": {"UCX"}}, TypeError, "backends must be a sequence of names, not {'UCX'}"),
        ({"backends": ()}, ValueError, r"backends must name at least one backend, not \(\)"),
        ({"backends": ("UCX", 3)}, TypeError, "each of backends must be a string, not 3"),
        ({"backends": ("",)}, ValueError, "each of backends must not be empty"),
        ({"telemetry": 1}, TypeError, "telemetry must be True or False, not 1"),
        ({"progress_thread": None}, TypeError, "progress_thread must be True or False, not None"),
        ({"num_threads": 1.5}, TypeError, "num_threads must be an integer, not 1.5"),
        ({"num_threads": True}, TypeError, "num_threads must be an integer, not True"),
        ({"num_threads": -1}, ValueError, "num_threads must be 0 or more, not -1"),
        ({"sync_mode": 2}, TypeError, "sync_mode must be a string, not 2"),
        ({"sync_mode": "RW"}, ValueError, "sync_mode must be one of none, rw, strict, not 'RW'"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        open_agent(**({"name": "agent"} | options))


@pytest.fixture
def no_nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "nixl":
            monkeypatch.delitem(sys.modules, name)


def test_nixl_that_is_not_installed(no_nixl: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)  # as Python marks what it could not find
    with pytest.raises(BackendUnavailableError, match="NIXL is not installed: pip install nixl, or, without"):
        open_agent("agent")


def test_a_directory_called_nixl_is_no_nixl(
    no_nixl: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nixl").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), os.path.dirname(os.__file__)])
    with pytest.raises(BackendUnavailableError, match="NIXL is not installed"):
        open_agent("agent")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "import torch_that_is_missing",
            "the module torch_that_is_missing that it needs is not: pip install",
        ),
        ("raise ImportError('libucp.so: no such file')", "does not load: libucp.so: no such file"),
    ],
)
def test_nixl_that_does_not_load(
    no_nixl: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, words: str
) -> None:
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendUnavailableError, match=words):
        open_agent("agent")


class OldMode:
    """``nixl_thread_sync_t`` of an old binding, which names no RW but takes its value."""

    def __init__(self, value: int) -> None:
        self.value = value


OLD_API = """
class nixl_agent_config:
    def __init__(self, enable_prog_thread=True, capture_telemetry=False, num_threads=0, backends=["UCX"]):
        self.enable_listen = False
        self.capture_telemetry = capture_telemetry
        self.backends = backends


class nixl_agent:
    def __init__(self, agent_name, nixl_conf=None, instantiate_all=False):
        mode = (
            nixlBind.NIXL_THREAD_SYNC_STRICT if nixl_conf.enable_listen else nixlBind.NIXL_THREAD_SYNC_NONE
        )
        self.agent = nixlBind.nixlAgent(agent_name, mode, nixl_conf.capture_telemetry)
        self.instantiate_all = instantiate_all
        self.backends = {name: 1 for name in nixl_conf.backends if name in self.get_plugin_list()}

    def get_plugin_list(self):
        return ["UCX", "POSIX"]
"""


@pytest.fixture
def old_api(no_nixl: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A NIXL whose configuration has no sync_mode."""
    binding = types.ModuleType("nixl._bindings")
    vars(binding).update(
        NIXL_THREAD_SYNC_NONE=OldMode(0),
        NIXL_THREAD_SYNC_STRICT=OldMode(1),
        nixl_thread_sync_t=OldMode,
        nixlAgent=lambda name, mode, telemetry: (name, mode.value, telemetry),
    )
    api = types.ModuleType("nixl._api")
    vars(api)["nixlBind"] = binding
    exec(OLD_API, vars(api))
    monkeypatch.setitem(sys.modules, "nixl", types.ModuleType("nixl"))
    monkeypatch.setitem(sys.modules, "nixl._api", api)
    return api


@pytest.mark.parametrize(("mode", "value"), [("none", 0), ("strict", 1), ("rw", 2)])
def test_old_nixl_gets_the_sync_mode_too(old_api: Any, mode: str, value: int) -> None:
    agent: Any = open_agent("agent", sync_mode=mode)
    assert type(agent) is old_api.nixl_agent
    assert agent.agent == ("agent", value, True)
    assert agent.instantiate_all is False  # the constructor's own defaults came along


def test_old_nixl_is_left_as_it_was(old_api: Any) -> None:
    names = dict(vars(old_api))
    bound = dict(vars(old_api.nixlBind))
    open_agent("agent")
    assert dict(vars(old_api)) == names
    assert dict(vars(old_api.nixlBind)) == bound
    assert old_api.nixl_agent("other", old_api.nixl_agent_config()).agent == ("other", 0, False)


def test_missing_plugins_are_named(old_api: Any) -> None:
    with pytest.raises(BackendUnavailableError, match="no backend GDS; it has POSIX, UCX"):
        open_agent("agent", backends=["UCX", "GDS"])


def test_a_constructor_that_raises_is_told_with_the_settings(
    old_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(old_api.nixlBind, "nixlAgent", refuse)
    monkeypatch.setenv("UCX_TLS", "rc")
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    words = r"the agent 'agent' with UCX: RuntimeError\('no device'\).*\(UCX_TLS=rc\)"
    with pytest.raises(BackendUnavailableError, match=words) as caught:
        open_agent("agent")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_importing_kvfast_loads_no_nixl() -> None:
    loaded = run_python("import sys, kvfast.agent, kvfast.cli, kvfast.doctor; print(*sys.modules)").split()
    assert "kvfast.agent" in loaded
    assert [name for name in loaded if name.partition(".")[0].startswith(("nixl", "torch"))] == []
