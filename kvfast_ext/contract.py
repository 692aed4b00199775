"""The backend contract in types: what a backend exports, takes and returns.

A backend is a module with exactly the names in `BACKEND_EXPORTS`. There are two: ``cython``
(compiled) and ``python`` (its twin, the reference). The rules that both follow are in `table`;
what differs is the *store*: how the handles in flight are kept and asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .held import HeldHandle

BACKEND_EXPORTS: Final = ("TransferTable", "bind", "pop_done_transfers", "try_release")
SCANS: Final = ("all", "watch")
OPS_CAPSULE: Final = "kvfast.ops.v1"

Handle = Any  # a nixl_xfer_handle, an int, or whatever a test double hands out
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quarantine:
    """How long a failed handle is kept before it is released.

    Parameters
    ----------
    lost_s : float
        Seconds for a LOST handle (its peer was removed under the transfer, so its bytes may still
        land and nothing tells when). 30 s is well over UCX's default keep-alive and retransmission
        times; a transfer that is slower than that needs more.
    failed_s : float
        Seconds for a FAILED handle. 0: FAILED is terminal for NIXL.

    Raises
    ------
    TypeError, ValueError
        If a time is not a number, is negative, or is not finite.
    """

    lost_s: float = 30.0
    failed_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lost_s", "failed_s"):
            check_seconds(f"Quarantine.{name}", getattr(self, name))


def check_seconds(name: str, value: object, *, positive: bool = False) -> float:
    """Return `value` as seconds, or raise an error that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        least = "positive" if positive else "zero or more"
        raise ValueError(f"{name} must be a finite, {least} number of seconds, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class HandleFailure:
    """One handle's failure, reported by the sweep that saw it first.

    ``status`` is a name of `states.NAMES`; ``error`` is the exception, or None for a test double's
    ``"ERR"``; ``peer`` is what `TransferTable.add` was given; ``lost`` tells a LOST handle, which
    goes into quarantine, from a FAILED one.
    """

    req_id: str
    handle: Handle
    status: str
    error: BaseException | None
    peer: str | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Transfers:
    """Telemetry of the handles that reached DONE in a sweep: int64 arrays of one length.

    ``xfer_us`` and ``post_us`` are microseconds by NIXL's clock, ``bytes`` and ``descriptors`` are
    counts. Rows are in no particular order. A handle without telemetry has no row; ``unsampled``
    counts those.
    """

    xfer_us: Int64Array
    post_us: Int64Array
    bytes: Int64Array
    descriptors: Int64Array
    unsampled: int = 0

    def __len__(self) -> int:
        return len(self.xfer_us)


@dataclass(slots=True)
class SweepResult:
    """What one sweep found. Sets and lists belong to the caller.

    Attributes
    ----------
    done : set of str
        Requests with no outstanding handle left; they have left the table.
    failed : set of str
        Requests in which this sweep first saw a failure. They may still be outstanding.
    failures : list of HandleFailure
        Every handle whose failure this sweep saw, once in its life; by request, then handle id.
    transfers : Transfers
        Telemetry of the handles that reached DONE.
    retained : int
        Handles kept only because a release was refused or a quarantine has not run out.
    blind_releases : int
        LOST handles released by this sweep, at the end of their quarantine.
    release_retries : int
        Refused releases that this sweep tried again.
    """

    transfers: Transfers
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    failures: list[HandleFailure] = field(default_factory=list)
    retained: int = 0
    blind_releases: int = 0
    release_retries: int = 0


def merged(first: SweepResult | None, second: SweepResult) -> SweepResult:
    """Return two sweeps' results, if there is a first, as one; counts of what is kept are the second's."""
    if first is None:
        return second
    a, b = first.transfers, second.transfers
    transfers = Transfers(
        np.concatenate([a.xfer_us, b.xfer_us]),
        np.concatenate([a.post_us, b.post_us]),
        np.concatenate([a.bytes, b.bytes]),
        np.concatenate([a.descriptors, b.descriptors]),
        a.unsampled + b.unsampled,
    )
    return SweepResult(
        transfers,
        first.done | second.done,
        first.failed | second.failed,
        first.failures + second.failures,
        second.retained,
        first.blind_releases + second.blind_releases,
        first.release_retries + second.release_retries,
    )


class Ended(NamedTuple):
    """A handle that left the store without being DONE and released: input of the rules."""

    req_id: str
    handle: Handle
    key: int
    peer: int  # a token of `peers.PeerTokens`
    code: int  # SUCCESS: the release was refused
    error: BaseException | None


class Swept(NamedTuple):
    """What a store's sweep gives to the rules."""

    drained: set[str]  # requests that own nothing any more; they have left the store
    ended: list[Ended]
    samples: Int64Array  # shape (4, rows): xfer_us, post_us, bytes, descriptors
    unsampled: int


class Ops(Protocol):
    """How the state of a handle is read: what `bind` returns."""

    @property
    def kind(self) -> str:
        """``"nixl"``, ``"python"``, ``"simulated"`` or ``"capsule"``."""

    @property
    def reason(self) -> str:
        """Why it is that kind, in a sentence."""

    @property
    def agent(self) -> Any:
        """The agent, kept alive as long as this object."""

    @property
    def telemetry_error(self) -> Exception | None:
        """The last exception of a telemetry call, or None."""

    def admit(self, handle: Handle) -> tuple[int, Handle]:
        """Return the id of a handle and the object to keep (None: the id is all there is)."""

    def status(self, handle: Handle) -> tuple[int, BaseException | None]:
        """Ask for the state of one handle: a status code and the exception, if any."""

    def release(self, handle: Handle) -> BaseException | None:
        """Release one handle; return the exception if that was refused."""

    def take_interrupt(self) -> BaseException | None:
        """Return, once, an exception that is no error and came out of an agent's method."""


class HandleStore(Protocol):
    """How a backend keeps the handles in flight. Not thread-safe: the table guards it."""

    in_flight: int

    def open(self, req_id: str) -> None: ...
    def append(self, req_id: str, keys: list[int], handles: list[Handle], peer: int) -> None: ...
    def drop(self, req_id: str) -> None: ...
    def let_go(self, item: HeldHandle, done: set[str]) -> None: ...
    def find(self, key: int) -> bool: ...
    def handles(self, req_id: str) -> list[Handle]: ...
    def ids(self) -> npt.NDArray[np.uint64]: ...
    def outstanding_of(self, peer: int) -> int: ...
    def sweep(self, full: bool, out: list[Swept]) -> None: ...
    def __contains__(self, req_id: object) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...


class Backend(Protocol):
    """A backend module, as `select_backend` returns it."""

    @property
    def __name__(self) -> str: ...

    TransferTable: Any
    bind: Any
    pop_done_transfers: Any
    try_release: Any


def check_backend(module: ModuleType) -> ModuleType:
    """Return `module` if it exports exactly the contract's names; raise ImportError otherwise."""
    names = tuple(sorted(getattr(module, "__all__", ())))
    if names != BACKEND_EXPORTS or not all(hasattr(module, name) for name in names):
        raise ImportError(f"{module.__name__} exports {names}, a backend must export {BACKEND_EXPORTS}")
    return module
