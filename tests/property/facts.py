"""What is true of the handles, as the agent knows it: the ground that a model stands on.

Nothing here is taken from the code under test. A handle is *outstanding* from its making until it is
released, or until a check has said DONE and none had said a failure before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kvfast.testing import FakeClock, ScriptedAgent

WELL: Final = (None, "PROC", "DONE")


class InvariantBrokenError(AssertionError):
    """A promise was broken; ``number`` is its number in the list of `tests.property.invariants`."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


def require(number: int, holds: object, text: str) -> None:
    """Raise if an invariant does not hold."""
    if not holds:
        raise InvariantBrokenError(number, text)


@dataclass(eq=False)
class HandleFacts:
    """One handle: whose it is and what the checks have said so far."""

    key: int
    owner: Any
    connection: tuple[str | None, int]  # a peer that dies and comes back is another one
    done: bool = False
    failed_at: float | None = None
    lost: bool = False
    disconnected: bool = False
    released: bool = False
    refused: bool = False  # its release was, or may have been

    @property
    def outstanding(self) -> bool:
        return not self.released and not self.done


class Facts:
    """The handles of one agent."""

    def __init__(self, agent: ScriptedAgent, clock: FakeClock, lost_s: float, failed_s: float) -> None:
        self.agent = agent
        self.clock = clock
        self.lost_s = lost_s
        self.failed_s = failed_s
        self.live: dict[int, HandleFacts] = {}
        self._releases_seen = 0
        self._connections: dict[str | None, int] = {}
        self._broken: set[tuple[str | None, int]] = set()

    def prepare(self, key: int, owner: Any, peer: str | None) -> Any:
        """Make a handle that belongs to a request."""
        handle = self.agent.prepare(key, peer=peer)
        self.live[key] = HandleFacts(key, owner, (peer, self._connections.get(peer, 0)))
        return handle

    def observe(self) -> list[HandleFacts]:
        """Take in what the agent has said and done since the last call; return what failed newly.

        This is where invariant 3 is checked.
        """
        require(3, not self.agent.violations, "; ".join(self.agent.violations))
        failed = [facts for facts in self.live.values() if self._take_answer(facts)]
        # Only now: all of a sweep's checks come before its releases.
        newly_broken = {facts.connection for facts in failed if facts.disconnected}
        self._broken |= newly_broken
        for peer, number in newly_broken:
            self._connections[peer] = number + 1
        for key in self.agent.released[self._releases_seen :]:
            self._take_release(self.live.pop(key))
        self._releases_seen = len(self.agent.released)
        return failed

    def known_dead(self, facts: HandleFacts) -> bool:
        """Tell whether nothing can land any more since the handle's connection is gone."""
        return facts.connection[0] is not None and facts.connection in self._broken

    def late(self) -> list[str]:
        """Return what should have been released by now, after a sweep."""
        found = []
        for facts in self.live.values():
            if facts.refused:
                continue
            if facts.done:
                found.append(f"DONE handle {facts.key}")
            elif facts.failed_at is not None and self.clock() - facts.failed_at >= self._least_wait(facts):
                found.append(f"failed handle {facts.key}")
        return found

    def _least_wait(self, facts: HandleFacts) -> float:
        return self.lost_s if facts.lost and not self.known_dead(facts) else self.failed_s

    def _take_answer(self, facts: HandleFacts) -> bool:
        said = self.agent.last_answer(facts.key)
        if said in WELL:
            facts.done = facts.done or (said == "DONE" and facts.failed_at is None)
            return False
        if facts.failed_at is not None or facts.done:
            return False
        facts.failed_at = self.clock()
        facts.lost, facts.disconnected = said == "NOT_FOUND", said == "DISCONNECT"
        return True

    def _take_release(self, facts: HandleFacts) -> None:
        facts.released = True
        if facts.failed_at is None:
            return
        least, waited = self._least_wait(facts), self.clock() - facts.failed_at
        require(3, waited >= least, f"failed handle {facts.key} was released after {waited} s of {least}")
