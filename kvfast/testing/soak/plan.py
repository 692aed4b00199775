"""Which faults meet which request: decided by the seed and the request's number, and by nothing else.

So every policy, backend and machine gets the same faults, however fast it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .settings import SoakSettings

_PROBABILITY: Final[dict[str, float]] = {
    "prepare": 0.01,
    "transfer": 0.01,
    "release": 0.03,
    "telemetry": 0.02,
    "notif-lost": 0.02,
    "notif-twice": 0.02,
    "notif-bad": 0.02,
    "notif-late": 0.02,
    "abort": 0.05,
    "lease": 0.02,
}
_STOP_S: Final = (0.2, 0.9)  # long against a transfer, short against the canary's time
_PAUSE_S: Final = 1.0
_WRAPPED: Final = 0.15  # of the requests go through an agent in Python, whatever their faults


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """One request: its size, its faults, and numbers to place them with."""

    number: int
    blocks: int
    faults: frozenset[str]
    pick: int  # any number; which handle or peer a fault meets
    repeat: int  # 1 to 3
    wrapped: bool  # through an agent whose release and telemetry can be made to raise

    @property
    def req_id(self) -> str:
        """The request's id; a colon is in it, as it may be."""
        return f"soak:{self.number}"


@dataclass(frozen=True, slots=True)
class EventPlan:
    """A fault of a process or peer, when so many requests were posted."""

    at_request: int
    kind: str
    pick: int
    seconds: float
    beside: bool  # for a kill: another rank is stopped meanwhile


def request_plan(settings: SoakSettings, number: int) -> RequestPlan:
    """Return the plan of one request."""
    dice = random.Random(f"{settings.seed}/request/{number}")
    blocks = dice.randint(1, settings.max_request_blocks)
    # One draw for each fault there is, chosen or not: another choice does not move the others.
    drawn = {fault for fault, p in _PROBABILITY.items() if dice.random() < p * settings.rate}
    faults = frozenset(drawn & set(settings.request_faults))
    wrapped = dice.random() < _WRAPPED or bool(faults & {"release", "telemetry"})
    return RequestPlan(number, blocks, faults, dice.randrange(1 << 16), dice.randint(1, 3), wrapped)


def event_plans(settings: SoakSettings, network: Sequence[str] = ()) -> Iterator[EventPlan]:
    """Yield the faults of processes and peers, in order; each kind comes once before any comes again.

    ``network`` names the faults of the network that are possible.
    """
    kinds = (*settings.event_faults, *network)
    if not kinds:
        return
    dice = random.Random(f"{settings.seed}/events")
    deck: list[str] = []
    for at in range(settings.fault_every, settings.requests, settings.fault_every):
        deck = deck or dice.sample(kinds, len(kinds))
        seconds = _PAUSE_S if deck[-1] == "pause" else dice.uniform(*_STOP_S)
        yield EventPlan(at, deck.pop(), dice.randrange(1 << 16), seconds, dice.random() < 0.5)
