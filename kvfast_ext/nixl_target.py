"""Find the C++ agent behind a Python object, and say why not if there is none to be used.

Native calls go past every Python method. So an object that has a `check_xfer_state` of its own (a
fault injector, a counting wrapper, a subclass that overrides it) must not be bound natively: what
it does in that method would silently not happen any more.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

_CONDUIT = "_pybind11_conduit_v1_"
AGENT_METHODS = ("check_xfer_state", "get_xfer_telemetry", "release_xfer_handle")
BINDING_METHODS = ("getXferStatus", "getXferTelemetry", "releaseXferReq")


@dataclass(frozen=True)
class NixlTarget:
    """A live pybind11 ``nixlAgent`` and what belongs to it.

    ``stock_methods`` tells that the agent's three methods are NIXL's own, so that native calls do
    the same; ``overriding`` names the one that is not.
    """

    inner: Any
    module: Any
    handle_type: type | None
    overriding: str = ""

    @property
    def stock_methods(self) -> bool:
        return not self.overriding

    @property
    def module_file(self) -> str:
        return str(self.module.__file__)


class Found(NamedTuple):
    target: NixlTarget | None
    reason: str


def find_target(agent: Any) -> Found:
    """Look for a NIXL binding object in `agent`, its ``agent`` attribute, or behind a wrapper."""
    inner = _inner(agent)
    if inner is None:
        return Found(None, f"{type(agent).__name__} is not a NIXL agent")
    module = sys.modules.get(type(inner).__module__)
    if module is None or not getattr(module, "__file__", None):
        return Found(None, f"the module of {type(inner).__name__} is not loaded from a file")
    api = sys.modules.get(module.__name__.rpartition(".")[0] + "._api")
    handle_type = getattr(api, "nixl_xfer_handle", None)
    overriding = _overriding(agent, inner, getattr(api, "nixl_agent", None))
    target = NixlTarget(inner, module, handle_type if isinstance(handle_type, type) else None, overriding)
    return Found(target, "")


def _inner(agent: Any) -> Any | None:
    for candidate in (agent, getattr(agent, "agent", None)):
        # A wrapper that forwards attributes gives the bound method of the real object.
        owner = getattr(getattr(candidate, _CONDUIT, None), "__self__", None)
        if owner is not None and _is_binding(owner):
            return owner
    return None


def _is_binding(owner: Any) -> bool:
    cls = type(owner)
    return cls.__name__ == "nixlAgent" and type(cls).__name__ == "pybind11_type"


def _overriding(agent: Any, inner: Any, stock: type | None) -> str:
    if agent is inner:
        return ""
    for name in AGENT_METHODS:
        method = getattr(agent, name, None)
        if method is not None and getattr(method, "__func__", None) is not getattr(stock, name, None):
            return f"{type(agent).__name__}.{name}"
    for name in BINDING_METHODS:
        method = getattr(agent, name, None)
        if method is not None and getattr(method, "__self__", None) is not inner:
            return f"{type(agent).__name__}.{name}"
    return ""


def warn_if_unlocked(agent: Any) -> None:
    """Warn if it can be seen that an agent was made without locking.

    Without the GIL, NIXL's own lock is all that keeps two threads apart. A ``nixl_agent`` does not
    tell how it was made; a wrapper that keeps its configuration does.
    """
    for holder in (agent, *(getattr(agent, name, None) for name in ("config", "nixl_conf", "nixl_config"))):
        mode = getattr(getattr(holder, "sync_mode", None), "name", None)
        if mode in ("NIXL_THREAD_SYNC_NONE", "NIXL_THREAD_SYNC_DEFAULT"):
            warnings.warn(
                f"{type(agent).__name__} has sync_mode {mode}: no locking. Its transfers are polled without "
                "the GIL, so no other thread may use it; open_agent() makes one with NIXL_THREAD_SYNC_RW",
                RuntimeWarning,
                stacklevel=3,
            )
            return
