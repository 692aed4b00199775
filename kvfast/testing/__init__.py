"""Stand-ins for NIXL and for time, for kvfast's tests and for yours."""

from __future__ import annotations

from .clock import FakeClock
from .errors import (
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
)
from .scripted_agent import ScriptedAgent, ScriptedHandle

__all__ = [
    "FakeClock",
    "ScriptedAgent",
    "ScriptedHandle",
    "nixlBackendError",
    "nixlInvalidParamError",
    "nixlNotFoundError",
    "nixlNotPostedError",
    "nixlRemoteDisconnectError",
    "nixlRepostActiveError",
]
