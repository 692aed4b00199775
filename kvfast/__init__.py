"""Bookkeeping of NIXL transfers in LLM serving: correct first, then fast.

The names below are loaded on first use, so that importing kvfast costs nothing and loads neither
NIXL nor the compiled backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kvfast_ext.contract import HandleFailure, Quarantine
from kvfast_ext.errors import (
    BackendUnavailableError,
    ClosedError,
    ConcurrentSweepError,
    DuplicateHandleError,
    DuplicateRequestError,
    KvfastError,
    UnknownRequestError,
    WrongThreadError,
)

if TYPE_CHECKING:
    from kvfast_ext import select_backend

    from . import notifs
    from .agent import Agent, open_agent
    from .peers import PeerGuard
    from .receive import Receiver
    from .rendezvous import PushRendezvous
    from .results import ReceiveResults, SendResults
    from .send import Sender
    from .stats import Stats

    BACKEND: str

__version__: Final = "0.1.0"

__all__ = [
    "BACKEND",
    "Agent",
    "BackendUnavailableError",
    "ClosedError",
    "ConcurrentSweepError",
    "DuplicateHandleError",
    "DuplicateRequestError",
    "HandleFailure",
    "KvfastError",
    "PeerGuard",
    "PushRendezvous",
    "Quarantine",
    "ReceiveResults",
    "Receiver",
    "SendResults",
    "Sender",
    "Stats",
    "UnknownRequestError",
    "WrongThreadError",
    "__version__",
    "notifs",
    "open_agent",
    "select_backend",
]

_LAZY: Final = {
    "Agent": "kvfast.agent",
    "PeerGuard": "kvfast.peers",
    "PushRendezvous": "kvfast.rendezvous",
    "ReceiveResults": "kvfast.results",
    "Receiver": "kvfast.receive",
    "SendResults": "kvfast.results",
    "Sender": "kvfast.send",
    "Stats": "kvfast.stats",
    "open_agent": "kvfast.agent",
    "select_backend": "kvfast_ext",
}
_SUBMODULES: Final = ("notifs", "stats")


def __getattr__(name: str) -> Any:
    if name == "BACKEND":
        # Not cached: it says what `select_backend("auto")` gives now.
        from kvfast_ext import backend_name, select_backend

        return backend_name(select_backend("auto"))
    if name in _SUBMODULES:
        return importlib.import_module(f"kvfast.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
