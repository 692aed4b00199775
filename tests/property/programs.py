"""Random programs: what a serving engine, its peers and the network may do, in any order.

A program is a list of steps. A step names requests and peers by small numbers, and handles by where they
stand among those not released at that time, so that most steps of a random program mean something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any, Final

from hypothesis import strategies as st

REQUESTS: Final = 4
PEERS: Final = ("P0", "P1")
STEPS: Final = 50
DRAWN: Final = STEPS + 6  # some are Pass by chance
_NUMBERS: Final = 2**16  # a step's variant is drawn as one of so many numbers

# How one transfer of a post fares: it is posted; prepare raises; transfer raises; that, and the release is
# refused; transfer returns "ERR", with bytes perhaps on their way.
WAYS: Final = ("ok", "prepare_raises", "transfer_raises", "release_refused", "returns_err")
STATES: Final = ("DONE", "PROC", "ERR", "NOT_FOUND", "DISCONNECT", "BACKEND", "BOOM")
# Multiples of 1/16, so that adding them up is exact. Whatever is compared with them ends in 1/32, so that no
# deadline is met to the dot.
TIMES: Final = (0.0625, 0.25, 1.5, 7.0, 31.0)


@dataclass(frozen=True)
class Pass:
    """Nothing: what a failing program's superfluous steps are reduced to."""


@dataclass(frozen=True)
class Track:
    req: int
    groups: tuple[int, int]  # how many blocks in each KV-cache group
    peer: int | None
    short: bool  # a receiver's read_before, a sender's lease: soon, or late


@dataclass(frozen=True)
class Post:
    req: int
    ways: tuple[str, ...]
    together: bool  # a receiver: one post_many, or a post for each until one says False


@dataclass(frozen=True)
class Notif:
    req: int
    peer: int


@dataclass(frozen=True)
class Call:
    """A method that takes a request and no more than a reason."""

    method: str
    req: int


@dataclass(frozen=True)
class Notified:
    req: int
    failed: bool = False


@dataclass(frozen=True)
class PeerCall:
    method: str
    peer: int


@dataclass(frozen=True)
class Heartbeat:
    reqs: tuple[int, ...]
    extend_s: float


@dataclass(frozen=True)
class Extend:
    """The producer of a request has extended its lease, as the consumer knows it."""

    req: int
    by_s: float


@dataclass(frozen=True)
class SetState:
    pick: int
    state: str


@dataclass(frozen=True)
class Kill:
    """A peer's process dies: one of its handles tells of the disconnect, the others that it is gone."""

    peer: int


@dataclass(frozen=True)
class Script:
    """A method of the agent that changes how a handle is answered."""

    method: str
    pick: int


@dataclass(frozen=True)
class Deaf:
    peer: int
    refuse: bool


@dataclass(frozen=True)
class Advance:
    seconds: float


@dataclass(frozen=True)
class Poll:
    pass


Step = Any  # one of the above


@dataclass(frozen=True)
class Config:
    """How the objects under test are made."""

    lost_s: float
    failed_s: float
    stall_after_s: float | None
    handle_objects: bool


@dataclass(frozen=True)
class Program:
    """A configuration and steps. Its repr can be pasted into an ``@example``."""

    config: Config
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        steps = "".join(f"    {step},\n" for step in self.steps if step != Pass())
        return f"Program({self.config}, (\n{steps}))"


def _all(step: Callable[..., Step], *fields: Iterable[Any]) -> tuple[Step, ...]:
    """Return every variant of a step; the simplest values of a field come first, frequent ones repeatedly."""
    return tuple(step(*values) for values in product(*fields))


_REQS: Final = range(REQUESTS)
_SOME_REQS: Final = ((), *((req,) for req in _REQS), *product(_REQS, _REQS))
_GROUPS: Final = tuple(product((1, 0, 2), (1, 0)))
_PEERS: Final = range(len(PEERS))
_PICKS: Final = range(8)
_WELL: Final = (("ok",), ("ok", "ok"), ("ok", "ok", "ok"))
_BADLY: Final = tuple(
    ways
    for bad in WAYS[1:]
    for ways in ((bad,), ("ok", bad), (bad, "ok"), ("ok", "ok", bad), ("ok", bad, "ok"))
)
_WAYS: Final = _WELL * 10 + _BADLY
_SCRIPTS: Final = ("refuse_release", "allow_release", "refuse_telemetry", "omit_telemetry")

# Each kind of step: how often, and its variants.
_COMMON: Final = {
    "track": (7, _all(Track, _REQS, _GROUPS, (0, 1, None), (False, False, False, True))),
    "post": (7, _all(Post, _REQS, _WAYS, (False, True))),
    "state": (9, _all(SetState, _PICKS, ("DONE",) * 7 + STATES)),
    "script": (1, _all(Script, _SCRIPTS, _PICKS)),
    "kill": (1, _all(Kill, _PEERS)),
    "advance": (3, _all(Advance, TIMES)),
    "poll": (9, (Poll(),)),
}
_RECEIVE: Final = {
    **_COMMON,
    "extend": (1, _all(Extend, _REQS, (2.03125, 40.03125))),
    "notif": (2, _all(Notif, _REQS, _PEERS)),
    "call": (2, _all(Call, ("fail", "abort", "report_failure", "complete"), _REQS)),
    "expect_writes": (2, _all(Call, ("expect_writes",), _REQS)),
    "notified": (3, _all(Notified, _REQS, (False,) * 7 + (True,))),
    "peer": (1, _all(PeerCall, ("peer_lost", "remove_peer"), _PEERS)),
    "deaf": (1, _all(Deaf, _PEERS, (False, True))),
}
_SEND: Final = {
    **_COMMON,
    "fail": (1, _all(Call, ("fail",), _REQS)),
    "notified": (3, _all(Notified, _REQS)),
    "heartbeat": (2, _all(Heartbeat, _SOME_REQS, (2.03125, 40.03125))),
}
_CONFIGS: Final = _all(Config, (30.03125, 0.0), (0.0, 0.0, 2.03125), (None, 10.03125), (False, True))


@dataclass(frozen=True)
class Programs:
    """All programs of a kind: as a strategy of hypothesis, or drawn from a generator of random numbers."""

    weighted: tuple[str, ...]
    variants: dict[str, tuple[Step, ...]]

    def strategy(self) -> st.SearchStrategy[Program]:
        """Return a strategy of two plain lists of numbers and a table.

        It is several times quicker than a strategy for each step, and a failing program still shrinks to
        few, simple steps.
        """
        return st.builds(
            self.build,
            st.integers(0, len(_CONFIGS) - 1),
            st.lists(st.sampled_from(self.weighted), min_size=DRAWN, max_size=DRAWN),
            st.lists(st.integers(0, _NUMBERS - 1), min_size=DRAWN, max_size=DRAWN),
        )

    def draw(self, random: Random) -> Program:
        """Draw a program. The same generator draws the same programs, whatever else was imported."""
        return self.build(
            random.randrange(len(_CONFIGS)),
            random.choices(self.weighted, k=DRAWN),
            [random.randrange(_NUMBERS) for _ in range(DRAWN)],
        )

    def build(self, config: int, chosen: list[str], numbers: list[int]) -> Program:
        """Make a program of numbers."""
        steps = (
            self.variants[kind][number % len(self.variants[kind])] for kind, number in zip(chosen, numbers)
        )
        return Program(_CONFIGS[config], tuple(steps))


def _programs(kinds: dict[str, tuple[int, tuple[Step, ...]]]) -> Programs:
    weighted = ("pass", *(kind for kind, (weight, _) in kinds.items() for _ in range(weight)))
    return Programs(weighted, {"pass": (Pass(),), **{kind: steps for kind, (_, steps) in kinds.items()}})


RECEIVE_PROGRAMS: Final = _programs(_RECEIVE)
SEND_PROGRAMS: Final = _programs(_SEND)
receive_programs: Final = RECEIVE_PROGRAMS.strategy()
send_programs: Final = SEND_PROGRAMS.strategy()
