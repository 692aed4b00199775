"""What a soak is told, and which faults there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

POLICIES: Final = ("kvfast", "first-error", "release-is-drain")
MODES: Final = ("pull", "push")

EVENT_FAULTS: Final[dict[str, str]] = {
    "stop": "a rank is stopped, and continued later",
    "kill-same": "a rank is killed, and started again under the same name",
    "kill-new": "a rank is killed, and started again under a new name",
    "remove": "a peer's removal is asked for mid-transfer, as the policy does it (kvfast: through PeerGuard)",
    "remove-behind": "a peer is stopped and removed mid-transfer through the raw agent, then continued",
    "stop-decode": "decode's whole process is stopped, and continued (push only)",
    "pause": "decode's loop pauses for a second",
    "reload": "a rank's metadata is loaded again mid-transfer",
}
"""Faults of a process or a peer: they hit every request that is in flight."""

REQUEST_FAULTS: Final[dict[str, str]] = {
    "prepare": "preparing a transfer raises",
    "transfer": "posting a transfer raises",
    "release": "releasing a handle raises one to three times",
    "telemetry": "telemetry of a handle raises",
    "notif-lost": "a notification is not sent",
    "notif-twice": "a notification is sent twice",
    "notif-bad": "a malformed message is sent beside a notification",
    "notif-late": "a notification is sent seconds later",
    "abort": "a request is aborted in flight",
    "lease": "a producer's lease is short and is not extended",
}
"""Faults of a single request."""

FAULTS: Final[dict[str, str]] = {**EVENT_FAULTS, **REQUEST_FAULTS}

MAX_RANKS: Final = 16
DEFAULT_REQUESTS: Final = 2000


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """Settings of one soak.

    Parameters
    ----------
    mode : {"pull", "push"}
        Decode READs from the ranks, or the ranks WRITE to decode.
    requests : int
        How many requests are made, unless the time is up before.
    minutes : float or None
        Make no more requests after this time.
    ranks : int
        Prefill ranks, each a process with an agent.
    seed : int
        Decides sizes and faults. The faults of request n are the same under every policy.
    policy : str
        One of `POLICIES`: who says when blocks may be given back.
    faults : tuple of str
        Names of `FAULTS`.
    backend, scan : str
        As `kvfast.select_backend` and ``TransferTable`` take them.
    pool_blocks : int
        Decode's blocks. Few, so that a block is used again as soon as it is free.
    rank_blocks : int
        A rank's blocks.
    block_bytes, max_request_blocks : int
        Size of a block, and of the largest request.
    window : int
        Requests in flight at a time; those in quarantine do not count.
    fault_every : int
        One fault of a process or peer for so many requests.
    rate : float
        Factor on how often each fault of a request comes.
    canary_s : float
        How long the next owner holds the blocks of a failed or aborted request, watching its canary.
    lost_s : float
        Quarantine of LOST handles.
    lease_s, short_lease_s : float
        A producer's lease, and that of a request with the fault ``lease``.
    network : bool
        Put ranks and decode into network namespaces of their own, and let packets be lost.
    timeout_s : float
        Give up when nothing has moved for this time.
    """

    mode: str = "pull"
    requests: int = DEFAULT_REQUESTS
    minutes: float | None = None
    ranks: int = 3
    seed: int = 0
    policy: str = "kvfast"
    faults: tuple[str, ...] = tuple(FAULTS)
    backend: str = "auto"
    scan: str = "watch"
    pool_blocks: int = 256
    rank_blocks: int = 1024
    block_bytes: int = 16384
    max_request_blocks: int = 4
    window: int = 24
    fault_every: int = 60
    rate: float = 1.0
    canary_s: float = 2.0
    lost_s: float = 6.0
    lease_s: float = 4.0
    short_lease_s: float = 0.3
    network: bool = False
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        _check_member("mode", self.mode, MODES)
        _check_member("policy", self.policy, POLICIES)
        for fault in self.faults:
            _check_member("fault", fault, tuple(FAULTS))
        _check_range("ranks", self.ranks, 1, MAX_RANKS)
        _check_range("requests", self.requests, 1, 10**8)
        _check_range("max_request_blocks", self.max_request_blocks, 1, self.pool_blocks)
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes must be positive, not {self.minutes!r}")

    @property
    def event_faults(self) -> tuple[str, ...]:
        """The chosen faults of a process or peer."""
        left_out = {"pull": "stop-decode"}.get(self.mode)
        return tuple(fault for fault in EVENT_FAULTS if fault in self.faults and fault != left_out)

    @property
    def request_faults(self) -> tuple[str, ...]:
        """The chosen faults of a single request."""
        return tuple(fault for fault in REQUEST_FAULTS if fault in self.faults)


def settings_from(values: Mapping[str, Any]) -> SoakSettings:
    """Return the settings that ``dataclasses.asdict`` and JSON have made of some."""
    return SoakSettings(**{**values, "faults": tuple(values["faults"])})


def parse_faults(text: str) -> tuple[str, ...]:
    """Read ``all``, ``none``, or names with commas between; raise ValueError for what is no fault."""
    if text == "all":
        return tuple(FAULTS)
    if text == "none":
        return ()
    chosen = {name.strip() for name in text.split(",")}
    for name in sorted(chosen):
        _check_member("fault", name, tuple(FAULTS))
    return tuple(name for name in FAULTS if name in chosen)


def _check_member(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} must be one of {', '.join(allowed)}, not {value!r}")


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {value!r}")
