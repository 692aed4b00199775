"""Ops over functions that answer with status codes: simulated engines and capsules, from Python.

The ``python`` backend's counterpart of what the compiled one does with a struct of C functions.
"""

from __future__ import annotations

from typing import Any, Protocol

from . import states
from .agent_ops import LARGEST, Sample, mark_released
from .contract import Handle
from .handles import id_only_key
from .simulated import exception_for


class CodedAgent(Protocol):
    """Three functions that take a handle id and answer with a status code."""

    def status_code(self, handle: int) -> int: ...
    def telemetry_code(self, handle: int) -> tuple[int, Sample]: ...
    def release_code(self, handle: int) -> int: ...


class CodedOps:
    """Read states from status codes."""

    telemetry_error = None

    def __init__(self, agent: Any, engine: CodedAgent, kind: str, reason: str) -> None:
        self.agent = agent
        self.kind = kind
        self.reason = reason
        self._engine = engine
        self._interrupt: BaseException | None = None

    def __repr__(self) -> str:
        return f"<ops {self.kind}: {self.reason}>"

    def admit(self, handle: Handle) -> tuple[int, Handle]:
        """Return the id of a handle and the object to keep."""
        return id_only_key(handle)

    def status(self, handle: Handle) -> tuple[int, Exception | None]:
        """Ask for the state of one handle: a status code and the exception, if any."""
        code = states.checked_code(self._engine.status_code(_id_of(handle)))
        return code, exception_for(code) if code < 0 else None

    def telemetry(self, handle: Handle) -> Sample | None:
        """Return xfer_us, post_us, bytes, descriptors of a DONE handle, or None."""
        code, sample = self._engine.telemetry_code(_id_of(handle))
        good = code == states.SUCCESS and min(sample) >= 0 and max(sample) <= LARGEST
        return sample if good else None

    def release(self, handle: Handle) -> Exception | None:
        """Release one handle; return the exception if that was refused."""
        try:
            code = self._engine.release_code(_id_of(handle))
            if code != states.SUCCESS:
                return exception_for(code)
            mark_released(handle)
        except BaseException as interrupt:  # a signal: it may be freed, so never again (agent_ops.py)
            mark_released(handle)
            self._interrupt = interrupt
        return None

    def take_interrupt(self) -> BaseException | None:
        """Return, once, what a signal raised during a release."""
        interrupt, self._interrupt = self._interrupt, None
        return interrupt


def _id_of(handle: Handle) -> int:
    return handle if type(handle) is int else int(handle._handle)
