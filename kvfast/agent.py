"""What kvfast asks of a NIXL agent, and how to make one that suits it.

kvfast sweeps with the GIL released, so nothing but NIXL's own lock keeps a sweep apart from another
thread that posts. NIXL's default is no lock. `open_agent` makes an agent with the read-write one,
and with telemetry on: without it NIXL measures no transfer.
"""

from __future__ import annotations

import importlib
import inspect
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from kvfast_ext.errors import BackendUnavailableError

Handle = Any

_NO_SYNC: Final = "NIXL_THREAD_SYNC_NONE"
# By value: the bindings of NIXL up to 1.2 do not name the last one, which their C++ has.
_SYNC_VALUES: Final = {"none": 0, "strict": 1, "rw": 2}
NIXL_INSTALL: Final = "pip install nixl, or, without its PyTorch, pip install --no-deps nixl nixl-cu13"


class Agent(Protocol):
    """The part of ``nixl_agent`` that kvfast uses. Test doubles and wrappers need no more."""

    def check_xfer_state(self, handle: Handle, /) -> str:
        """Return ``"DONE"`` or ``"PROC"``; raise on any error (doubles may return ``"ERR"``)."""

    def get_xfer_telemetry(self, handle: Handle, /) -> Any:
        """Return NIXL's times and counts of a transfer that is DONE."""

    def release_xfer_handle(self, handle: Handle, /) -> None:
        """Free a handle. Says nothing about a transfer that was in progress."""

    def transfer(self, handle: Handle, /, notif_msg: bytes = b"") -> str:
        """Post a prepared transfer; from here on its bytes may land at any time."""

    def send_notif(self, remote_agent_name: str, /, notif_msg: bytes) -> None:
        """Send a message that belongs to no transfer."""

    def get_new_notifs(self) -> Mapping[str, Sequence[bytes]]:
        """Return the messages that came since the last call, by sending agent."""

    def remove_remote_agent(self, agent: str, /) -> None:
        """Forget a peer; its transfers in flight become LOST."""


def open_agent(
    name: str,
    *,
    backends: Sequence[str] = ("UCX",),
    telemetry: bool = True,
    progress_thread: bool = True,
    num_threads: int = 0,
    sync_mode: str = "rw",
) -> Agent:
    """Make a NIXL agent that can be swept natively from one thread while others post.

    Parameters
    ----------
    name : str
        The agent's name, unique among its peers.
    backends : sequence of str
        NIXL backends to start. One that this NIXL has no plugin for is an error.
    telemetry : bool
        Let NIXL measure transfers; sweeps return what it measured.
    progress_thread : bool
        Let NIXL serve peers while nobody calls it. The thread that does so never sleeps (seen with NIXL
        1.5.1): it takes a core.
    num_threads : int
        Worker threads of the backends that have any; 0 is the backend's default.
    sync_mode : {"rw", "strict", "none"}
        NIXL's lock. ``"none"`` is right only where a single thread uses the agent.

    Returns
    -------
    nixl_agent
        A plain one, of the NIXL that ``import nixl`` gives.

    Raises
    ------
    TypeError, ValueError
        If an argument is not what it should be.
    BackendUnavailableError
        If NIXL, or one of `backends`, is missing or does not start.
    """
    _check_name("name", name)
    _check_backends(backends)
    _check_bool("telemetry", telemetry)
    _check_bool("progress_thread", progress_thread)
    _check_count("num_threads", num_threads)
    _check_sync_mode(sync_mode)
    api = _load_nixl()
    options = {
        "enable_prog_thread": progress_thread,
        "capture_telemetry": telemetry,
        "num_threads": num_threads,
        "backends": list(backends),
    }
    try:
        agent = _make(api, name, options, _SYNC_VALUES[sync_mode])
    except Exception as error:
        raise BackendUnavailableError(_not_started(name, backends, error)) from error
    _check_started(agent, backends)
    return cast(Agent, agent)


def _load_nixl() -> types.ModuleType:
    try:
        return importlib.import_module("nixl._api")
    except ModuleNotFoundError as error:
        # "nixl._api" too: a directory called nixl on sys.path imports as an empty package.
        if error.name in ("nixl", "nixl._api"):
            raise BackendUnavailableError(f"NIXL is not installed: {NIXL_INSTALL}") from error
        raise BackendUnavailableError(
            f"NIXL is installed, but the module {error.name} that it needs is not: pip install {error.name}"
        ) from error
    except ImportError as error:
        raise BackendUnavailableError(f"NIXL is installed, but does not load: {error}") from error


def _make(api: types.ModuleType, name: str, options: dict[str, Any], sync_value: int) -> Any:
    if "sync_mode" in inspect.signature(api.nixl_agent_config).parameters:
        mode = api.nixl_thread_sync_t(api.nixlBind.nixl_thread_sync_t(sync_value))
        return api.nixl_agent(name, api.nixl_agent_config(sync_mode=mode, **options))
    return _make_before_sync_mode(api, name, api.nixl_agent_config(**options), sync_value)


def _make_before_sync_mode(api: types.ModuleType, name: str, config: Any, sync_value: int) -> Any:
    """Make an agent with a NIXL (up to 1.2) whose constructor knows no sync mode but NONE.

    The mode is a name that the constructor looks up in its binding module. A copy of the
    constructor is run in which that name alone gives another value; NIXL itself is not touched.
    """
    stock = api.nixl_agent.__init__
    # A namespace of its own, so that the copy sees neither more nor less than the original did.
    names = {**stock.__globals__, "nixlBind": _BindingWithSyncMode(api.nixlBind, sync_value)}
    init = types.FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    agent = api.nixl_agent.__new__(api.nixl_agent)
    init(agent, name, config)
    return agent


class _BindingWithSyncMode:
    """NIXL's binding module, in which "no lock" means the sync mode that was asked for."""

    def __init__(self, binding: types.ModuleType, sync_value: int) -> None:
        self._binding = binding
        self._sync_mode = binding.nixl_thread_sync_t(sync_value)

    def __getattr__(self, name: str) -> Any:
        return self._sync_mode if name == _NO_SYNC else getattr(self._binding, name)


def _check_started(agent: Any, backends: Sequence[str]) -> None:
    # NIXL only logs a warning for a plugin that it does not have.
    missing = [backend for backend in backends if backend not in agent.backends]
    if missing:
        available = ", ".join(sorted(agent.get_plugin_list()))
        raise BackendUnavailableError(f"this NIXL has no backend {', '.join(missing)}; it has {available}")


def _not_started(name: str, backends: Sequence[str], error: Exception) -> str:
    ucx = {key: value for key, value in os.environ.items() if key in ("UCX_TLS", "UCX_NET_DEVICES")}
    given = ", ".join(f"{key}={value}" for key, value in sorted(ucx.items())) or "neither is set"
    return (
        f"NIXL could not make the agent {name!r} with {', '.join(backends)}: {error!r}. "
        f"Do UCX_TLS and UCX_NET_DEVICES allow a transport that is there? ({given})"
    )


def _check_name(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {value!r}")
    if not value:
        raise ValueError(f"{what} must not be empty, not {value!r}")


def _check_backends(value: object) -> None:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"backends must be a sequence of names, not {value!r}")
    if not value:
        raise ValueError(f"backends must name at least one backend, not {value!r}")
    for backend in value:
        _check_name("each of backends", backend)


def _check_bool(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}")


def _check_count(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an integer, not {value!r}")
    if value < 0:
        raise ValueError(f"{what} must be 0 or more, not {value!r}")


def _check_sync_mode(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"sync_mode must be a string, not {value!r}")
    if value not in _SYNC_VALUES:
        raise ValueError(f"sync_mode must be one of {', '.join(sorted(_SYNC_VALUES))}, not {value!r}")
