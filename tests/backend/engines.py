"""The kinds of agents that a backend can be bound to, behind one interface for tests.

An engine has handles 0 to 63, all in progress at first. Tests set statuses by NIXL's numbers; how an
engine says them (strings, exceptions, array items, return values of C functions) is its own matter.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, Protocol

from kvfast_ext import SimulatedAgent
from tests.backend.doubles import DONE, PROC, Double, HandleObject, raising, telemetry

SIZE: Final = 64
Sample = tuple[int, int, int, int]  # xfer_us, post_us, bytes, descriptors


class Engine(Protocol):
    """What a test may do to handles, and what it may ask about them."""

    kind: str  # of the ops that bind() makes
    agent: Any
    violations: list[str]

    def set(self, handle: int, status: int) -> None: ...
    def refuse(self, handle: int, status: int | None) -> None: ...
    def sample(self, handle: int, sample: Sample) -> None: ...
    def released(self, handle: int) -> int: ...
    def reuse(self, handle: int) -> None:
        """Give out a released id once more, as NIXL does."""


class DoubleEngine:
    """Python methods that answer with strings and raise like NIXL's binding."""

    kind = "python"

    def __init__(self) -> None:
        self.agent = Double()
        self.violations = self.agent.violations

    def set(self, handle: int, status: int) -> None:
        words = {DONE: "DONE", PROC: "PROC"}
        self.agent.answers[handle] = words[status] if status in words else raising(status)

    def refuse(self, handle: int, status: int | None) -> None:
        if status is None:
            self.agent.refusals.pop(handle, None)
        else:
            self.agent.refusals[handle] = raising(status)

    def sample(self, handle: int, sample: Sample) -> None:
        self.agent.samples[handle] = telemetry(*sample)

    def released(self, handle: int) -> int:
        return self.agent.released[handle]

    def reuse(self, handle: int) -> None:
        self.agent.reuse(handle)


class SimulatedEngine:
    """kvfast's own `SimulatedAgent`."""

    kind = "simulated"

    def __init__(self) -> None:
        self.agent = SimulatedAgent(SIZE)
        self.violations: list[str] = []

    def set(self, handle: int, status: int) -> None:
        self.agent.states[handle] = status

    def refuse(self, handle: int, status: int | None) -> None:
        self.agent.release_codes[handle] = status or 0

    def sample(self, handle: int, sample: Sample) -> None:
        self.agent.telemetry[handle] = sample

    def released(self, handle: int) -> int:
        return int(self.agent.released[handle])

    def reuse(self, handle: int) -> None:
        self.agent.released[handle] = 0
        self.agent.states[handle] = PROC


class Telemetry(ctypes.Structure):
    """``struct Telemetry`` of the ops capsule."""

    _fields_ = [
        ("start_us", ctypes.c_int64),
        ("post_us", ctypes.c_int64),
        ("xfer_us", ctypes.c_int64),
        ("bytes", ctypes.c_uint64),
        ("descriptors", ctypes.c_uint64),
    ]


CALL: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64)
TELEMETRY_CALL: Final = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(Telemetry)
)


class Ops(ctypes.Structure):
    """``struct OpsV1`` of the ops capsule; the functions as plain addresses."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("status", ctypes.c_void_p),
        ("telemetry", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
    ]


def new_capsule(address: int, name: bytes | None = b"kvfast.ops.v1") -> Any:
    """Return a PyCapsule; `name` must outlive it, which a literal does."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, name, None)


class CapsuleEngine:
    """A ``kvfast.ops.v1`` capsule over C functions that call back into this object.

    It keeps the rules of a handle's life as `Double` does.
    """

    kind = "capsule"
    CONTEXT: Final = 0x5EED

    def __init__(self) -> None:
        self.statuses = [PROC] * SIZE
        self.refusals = [0] * SIZE
        self.telemetry_codes = [0] * SIZE
        self.samples: list[Sample] = [(1, 1, 1, 1)] * SIZE
        self.releases = [0] * SIZE
        self.asked: list[int] = []
        self.violations: list[str] = []
        self._seen = [PROC] * SIZE
        self._functions = (CALL(self._status), TELEMETRY_CALL(self._telemetry), CALL(self._release))
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        self.ops = Ops(1, ctypes.sizeof(Ops), self.CONTEXT, *addresses)
        self.agent = new_capsule(ctypes.addressof(self.ops))

    def set(self, handle: int, status: int) -> None:
        self.statuses[handle] = status

    def refuse(self, handle: int, status: int | None) -> None:
        self.refusals[handle] = status or 0

    def sample(self, handle: int, sample: Sample) -> None:
        self.samples[handle] = sample

    def released(self, handle: int) -> int:
        return self.releases[handle]

    def reuse(self, handle: int) -> None:
        self.releases[handle] = 0
        self.statuses[handle] = self._seen[handle] = PROC

    def _status(self, context: int, handle: int) -> int:
        self._enter("check", context, handle)
        self.asked.append(handle)
        self._seen[handle] = self.statuses[handle]
        return self.statuses[handle]

    def _telemetry(self, context: int, handle: int, out: Any) -> int:
        self._enter("telemetry", context, handle)
        xfer_us, post_us, n_bytes, descriptors = self.samples[handle]
        out[0] = Telemetry(7, post_us, xfer_us, n_bytes, descriptors)
        return self.telemetry_codes[handle]

    def _release(self, context: int, handle: int) -> int:
        self._enter("release", context, handle)
        if self._seen[handle] == PROC:
            self.violations.append(f"handle {handle} was released while it was in progress")
        if self.refusals[handle] == 0:
            self.releases[handle] += 1
        return self.refusals[handle]

    def _enter(self, method: str, context: int, handle: int) -> None:
        if context != self.CONTEXT:
            self.violations.append(f"{method} got context {context}")
        if self.releases[handle]:
            self.violations.append(f"{method} of handle {handle} after its release")


ENGINES: Final[dict[str, type[DoubleEngine] | type[SimulatedEngine] | type[CapsuleEngine]]] = {
    "double": DoubleEngine,
    "simulated": SimulatedEngine,
    "capsule": CapsuleEngine,
}


def as_handles(engine: Engine, ids: tuple[int, ...], form: str) -> list[Any]:
    """Return handles by ids: ints, objects with a ``_handle``, or both in turns."""
    agent = engine.agent if isinstance(engine.agent, Double) else None
    made: list[Any] = list(ids)
    for i, handle in enumerate(ids):
        if form == "objects" or (form == "mixed" and i % 2):
            made[i] = HandleObject(handle, agent)
    return made
