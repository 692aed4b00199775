"""Agents that do what a test says, and complain about what must never be done to a handle.

`Double` answers like a ``nixl_agent``; `HandleObject` is its ``nixl_xfer_handle``, finaliser included.
A double keeps the rules of a handle's life by itself: whatever a test is about, a release of a handle
that was last seen in progress, a second release, or any call on a released handle ends up in
``violations``, and the `engine` fixture fails the test for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

# NIXL's status codes and the classes that its binding throws for them, written down here a second time.
NIXL_STATUSES: Final = {
    -1: ("NOT_POSTED", "nixlNotPostedError"),
    -2: ("INVALID_PARAM", "nixlInvalidParamError"),
    -3: ("BACKEND", "nixlBackendError"),
    -4: ("NOT_FOUND", "nixlNotFoundError"),
    -5: ("MISMATCH", "nixlMismatchError"),
    -6: ("NOT_ALLOWED", "nixlNotAllowedError"),
    -7: ("REPOST_ACTIVE", "nixlRepostActiveError"),
    -8: ("UNKNOWN", "nixlUnknownError"),
    -9: ("NOT_SUPPORTED", "nixlNotSupportedError"),
    -10: ("REMOTE_DISCONNECT", "nixlRemoteDisconnectError"),
    -11: ("CANCELED", "nixlCancelledError"),
    -12: ("NO_TELEMETRY", "nixlNoTelemetryError"),
}
PROC: Final = 1
DONE: Final = 0
BACKEND_ERROR: Final = -3
LOST: Final = -4
DISCONNECT: Final = -10
FAILED_CODES: Final = tuple(sorted(set(NIXL_STATUSES) - {LOST}))
ERRORS: Final[dict[int, type[RuntimeError]]] = {
    code: type(name, (RuntimeError,), {}) for code, (_, name) in NIXL_STATUSES.items()
}


def nixl_error(code: int) -> RuntimeError:
    """Return what NIXL's binding throws for a status."""
    return ERRORS[code](NIXL_STATUSES[code][0])


def raising(code: int) -> Callable[[], Any]:
    """Return what raises that, each time a new one: who keeps an exception keeps all that its frames saw."""

    def fail() -> Any:
        raise nixl_error(code)

    return fail


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 1024.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class HandleObject:
    """A handle as a ``nixl_agent`` hands it out: it releases itself when it is collected."""

    __slots__ = ("__weakref__", "_agent", "_handle", "_released")

    def __init__(self, handle: int, agent: Any = None) -> None:
        self._handle = handle
        self._agent = agent
        self._released = False

    def __repr__(self) -> str:
        return f"HandleObject({self._handle}, released={self._released})"

    def __del__(self) -> None:
        if not self._released and self._agent is not None:
            self._agent.finalised.append(self._handle)


class Double:
    """An agent with the three methods of a ``nixl_agent``.

    ``answers[id]`` is what a check of that handle returns, or raises if it is an exception, or calls
    if it is callable; "PROC" by default. ``samples[id]`` is its telemetry, likewise. ``refusals[id]`` is
    what a release raises, or a callable that does. ``before[method, id]`` is called once, when that
    method is; ``after_release[id]`` once, when NIXL could have given the id out again already and the
    caller does not know yet.
    """

    def __init__(self) -> None:
        self.answers: dict[Any, Any] = {}
        self.refusals: dict[Any, BaseException | Callable[[], Any]] = {}
        self.samples: dict[Any, Any] = {}
        self.before: dict[tuple[str, Any], Callable[[], object]] = {}
        self.after_release: dict[Any, Callable[[], object]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.released: Counter[Any] = Counter()
        self.finalised: list[Any] = []
        self.violations: list[str] = []
        self._seen: dict[Any, Any] = {}

    def check_xfer_state(self, handle: Any) -> Any:
        key = self._enter("check", handle)
        self._seen[key] = "an error"
        self._seen[key] = answer = self._give(self.answers.get(key, "PROC"))
        return answer

    def get_xfer_telemetry(self, handle: Any) -> Any:
        key = self._enter("telemetry", handle)
        return self._give(self.samples.get(key, telemetry(1, 1, 1, 1)))

    def release_xfer_handle(self, handle: Any) -> None:
        key = self._enter("release", handle)
        seen = self._seen.get(key, "PROC")
        if seen is not True and seen in ("PROC", PROC):
            self.violations.append(f"handle {key} was released while it was in progress")
        if key in self.refusals:
            self._give(self.refusals[key])
        self.released[key] += 1
        if isinstance(handle, HandleObject):
            handle._released = True
        if key in self.after_release:
            self.after_release.pop(key)()

    def reuse(self, key: Any, answer: Any = "PROC") -> None:
        """Give out a released id once more, as NIXL does."""
        del self.released[key]
        self._seen.pop(key, None)
        self.answers[key] = answer

    def asked(self, method: str = "check") -> list[Any]:
        """Return the ids that a method was called with, and forget them."""
        ids = [key for called, key in self.calls if called == method]
        self.calls = [call for call in self.calls if call[0] != method]
        return ids

    def _enter(self, method: str, handle: Any) -> Any:
        key = handle._handle if isinstance(handle, HandleObject) else handle
        self.calls.append((method, key))
        if self.released[key]:
            self.violations.append(f"{method} of handle {key} after its release")
        action = self.before.pop((method, key), None)
        if action is not None:
            action()
        return key

    def _give(self, answer: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


def telemetry(xfer_us: Any, post_us: Any, n_bytes: Any, descriptors: Any) -> SimpleNamespace:
    """Return telemetry as NIXL's binding gives it."""
    return SimpleNamespace(
        startTime=7, xferDuration=xfer_us, postDuration=post_us, totalBytes=n_bytes, descCount=descriptors
    )
