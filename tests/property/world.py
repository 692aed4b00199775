"""One backend and one scan, under a program: the agent, the object under test, and what is true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kvfast import KvfastError
from kvfast.testing import ScriptedAgent
from tests.property.facts import Facts, HandleFacts, InvariantBrokenError, require
from tests.property.programs import Config

FULL_SCAN_S: Final = 0.0625  # the code's own 0.05 s, and a bit
Outcome = tuple[str, Any]
UNKNOWN: Final[Outcome] = ("raised", "UnknownRequestError")
DUPLICATE: Final[Outcome] = ("raised", "DuplicateRequestError")
Blocks = list[list[int]]


class ModelDiffersError(AssertionError):
    """The code under test did something safe, and not what the model expects."""


def agree(found: object, expected: object, what: str) -> None:
    """Raise if the code under test and the model differ."""
    if found != expected:
        raise ModelDiffersError(f"{what}: found {found}, the model expects {expected}")


@dataclass(eq=False)
class Life:
    """A request from `track` to its report."""

    req_id: str
    blocks: Blocks
    peer: str | None
    handles: list[HandleFacts] = field(default_factory=list)
    failed: bool = False
    begun: bool = False

    @property
    def own_outstanding(self) -> list[int]:
        return [facts.key for facts in self.handles if facts.outstanding]


class World:
    """The common part of a receiving and a sending world."""

    subject: Any

    def __init__(self, config: Config, backend: str, scan: str, clock: Any) -> None:
        self.name = f"{backend}, {scan}"
        self.backend = backend
        self.scan = scan
        self.config = config
        self.clock = clock
        self.agent = ScriptedAgent(handle_objects=config.handle_objects)
        self.facts = Facts(self.agent, clock, config.lost_s, config.failed_s)
        self.lives: dict[str, Life] = {}
        self.deaf_peers: set[str] = set()
        self._polled_at = -FULL_SCAN_S
        self.bereft: Counter[str] = Counter()  # requests that a peer's death made fail, and how often
        self.seen: set[str] = set()  # kinds of events, so that a test can tell that they happen

    def attempt(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
        """Call the code under test; an error for a caller's mistake is an outcome too."""
        try:
            return "returned", call(*args, **kwargs)
        except KvfastError as error:
            return "raised", type(error).__name__

    def after(self) -> None:
        """Take in what the agent was asked, and said, since the last call."""
        failed = self.facts.observe()
        for facts in failed:
            facts.owner.failed = True
            self.seen.add("LOST" if facts.lost else "handle failure")
        for peer in {facts.connection[0] for facts in failed if facts.disconnected}:
            if peer is not None:
                self.lose(peer)

    def check_sweep(self) -> None:
        """Check, after a poll, that nothing was put off that could be done."""
        agree(self.facts.late(), [], "kept too long")
        if self.scan == "all" or self.clock() - self._polled_at >= FULL_SCAN_S:
            agree([key for key in self.facts.live if self.unnoticed(key)], [], "ended, and not noticed")
        self._polled_at = self.clock()

    def lose(self, peer: str) -> None:
        """A handle told that a peer is dead."""

    def after_step(self) -> None:
        """Check what must hold after a step that is no poll."""
        self.after()

    def troubled(self) -> set[str]:
        """Return the requests for which a quarantine or a release retry is running."""
        live = self.facts.live.values()
        return {facts.owner.req_id for facts in live if facts.failed_at is not None}

    def unnoticed(self, key: int) -> bool:
        """Tell whether a handle has ended, and no check has found it out."""
        facts = self.facts.live.get(key)
        if facts is None or facts.done or facts.failed_at is not None:
            return False
        return self.agent.next_answer(key) != "PROC"

    def end_handles(self) -> None:
        """End all handles that are in flight, well; let all be released."""
        for key in list(self.facts.live):
            if not self.unnoticed(key):
                self.agent.set_state(key, "DONE")
            self.agent.allow_release(key)

    # ---- steps that concern the agent

    def in_flight_to(self, peer: str) -> list[int]:
        """Return the handles of a peer whose transfers have not ended."""
        live = self.facts.live.items()
        return [
            key
            for key, facts in live
            if facts.connection[0] == peer and self.agent.next_answer(key) == "PROC"
        ]

    def set_states(self, states: dict[int, str]) -> Outcome:
        self.agent.set_states({key: state for key, state in states.items() if key in self.facts.live})
        return "returned", None

    def script(self, method: str, key: int) -> Outcome:
        if key in self.facts.live:
            getattr(self.agent, method)(key)
            self.facts.live[key].refused |= method == "refuse_release"
        return "returned", None

    def deaf(self, peer: str, refuse: bool) -> Outcome:
        (self.deaf_peers.add if refuse else self.deaf_peers.discard)(peer)
        (self.agent.refuse_notifs if refuse else self.agent.allow_notifs)(peer)
        return "returned", None

    # ---- posting

    def prepares(self, life: Life, keys: list[int], ways: tuple[str, ...]) -> list[Callable[[], Any]]:
        """Return what makes the handles of a post, each in its way."""
        return [self._prepare(life, key, way) for key, way in zip(keys, ways)]

    def _prepare(self, life: Life, key: int, way: str) -> Callable[[], Any]:
        def prepare() -> Any:
            self.seen.add(f"post: {way}")
            if way == "prepare_raises":
                raise RuntimeError("prepare refused")
            handle = self.facts.prepare(key, life, life.peer)
            life.handles.append(self.facts.live[key])
            if way in ("transfer_raises", "release_refused"):
                self.agent.refuse_transfer(key)
            if way == "release_refused":
                self.agent.refuse_release(key)
                self.agent.set_state(key, "PROC")  # or its check would say that it was not posted
                self.facts.live[key].refused = True
            return handle

        return prepare

    def made(self, keys: list[int], outcome: Outcome) -> Outcome:
        """Return the outcome of a post, with the handles that it got as far as making."""
        return outcome[0], (outcome[1], [key for key in keys if key in self.facts.live])

    def transfer(self, keys: list[int], ways: tuple[str, ...]) -> Callable[[Any], str]:
        """Return what posts these handles."""
        err = {key for key, way in zip(keys, ways) if way == "returns_err"}

        def transfer(handle: Any) -> str:
            status = self.agent.transfer(handle)
            return "ERR" if getattr(handle, "_handle", handle) in err else status

        return transfer

    def poll(self) -> Outcome:
        """Poll, and check what is reported."""
        raise NotImplementedError

    def drain(self) -> None:
        """Let everything end."""
        raise NotImplementedError

    def drained(self) -> None:
        """Check what must hold at the end, when everything has drained."""
        require(2, not self.lives, f"never reported: {sorted(self.lives)}")
        try:
            self.agent.assert_drained()
        except AssertionError as error:
            raise InvariantBrokenError(3, str(error)) from error
