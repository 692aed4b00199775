"""Lines that no other test comes to: small promises, each with the reason why it is there."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import kvfast_ext
from kvfast_ext import BackendUnavailableError, SimulatedAgent, nixl_target, states
from kvfast_ext.agent_ops import check_admissible, mark_released
from kvfast_ext.nixl_target import NixlTarget, find_target, warn_if_unlocked
from kvfast_ext.peers import PeerTokens


class StubbornHandle:
    """A handle whose mark can't be set."""

    @property
    def _released(self) -> bool:
        return False


def test_cython_that_is_not_installed_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvfast_ext, "cython_available", lambda: False)
    with pytest.raises(BackendUnavailableError, match="KVFAST_BUILD_EXT=yes"):
        kvfast_ext.select_backend("cython")


def test_a_handle_that_can_not_be_marked_as_released_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    mark_released(StubbornHandle())
    assert "can't be marked as released" in caplog.text


def test_a_released_handle_is_refused() -> None:
    handle = SimpleNamespace(_handle=4096, _released=True)
    with pytest.raises(ValueError, match="is released already"):
        check_admissible(NixlTarget(None, kvfast_ext, None, ""), 4096, handle, handle)


def test_a_binding_that_was_not_loaded_from_a_file_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_target, "_inner", lambda agent: 3)
    found = find_target(object())
    assert found.target is None
    assert "the module of int is not loaded from a file" in found.reason


class _Binding:
    def getXferStatus(self, handle: int) -> int:  # noqa: N802 - NIXL's name
        return 0


class _Wrapped:
    """A binding's wrapper that has one method of its own."""

    def __init__(self, inner: _Binding) -> None:
        self.inner = inner

    def getXferStatus(self, handle: int) -> int:  # noqa: N802
        return self.inner.getXferStatus(handle)


def test_a_wrapper_of_a_binding_is_known_by_the_method_that_is_its_own() -> None:
    inner = _Binding()
    assert nixl_target._overriding(_Wrapped(inner), inner, None) == "_Wrapped.getXferStatus"
    assert nixl_target._overriding(inner, inner, None) == ""


def test_an_agent_that_was_made_without_locking_is_warned_of() -> None:
    mode = SimpleNamespace(name="NIXL_THREAD_SYNC_NONE")
    with pytest.warns(RuntimeWarning, match="SimpleNamespace has sync_mode NIXL_THREAD_SYNC_NONE"):
        warn_if_unlocked(SimpleNamespace(config=SimpleNamespace(sync_mode=mode)))
    warn_if_unlocked(SimpleNamespace(sync_mode=SimpleNamespace(name="NIXL_THREAD_SYNC_RW")))


def test_a_peer_is_a_name() -> None:
    with pytest.raises(TypeError, match="peer must be a str or None, not 3"):
        PeerTokens().token(3)  # type: ignore[arg-type]


def test_simulated_handles_that_there_are_not() -> None:
    agent = SimulatedAgent(1)
    assert agent.telemetry_code(1) == (states.INVALID_PARAM, (0, 0, 0, 0))
    assert agent.status_code(1) == agent.release_code(1) == states.INVALID_PARAM


class Feeding:
    """An agent in whose check more is added to the table that is being swept."""

    def __init__(self) -> None:
        self.table: Any = None
        self.seen: list[list[int]] = []

    def check_xfer_state(self, handle: int) -> str:
        if not self.seen:
            self.table.add("b", 3)
            self.table.add("c", 4, 5)
            self.seen.append(self.table.handles("c"))
        return "PROC" if not self.seen[1:] else "DONE"

    def get_xfer_telemetry(self, handle: int) -> None: ...

    def release_xfer_handle(self, handle: int) -> None: ...


def test_handles_of_a_request_that_was_added_during_the_sweep(backend: ModuleType) -> None:
    agent = Feeding()
    agent.table = backend.TransferTable(backend.bind(agent), scan="all")
    agent.table.add("a", 1, 2)
    backend.pop_done_transfers(agent.table)
    assert agent.seen == [[4, 5]]
    agent.seen.append([])
    assert backend.pop_done_transfers(agent.table).done == {"a", "b", "c"}
