"""When the writes that peers were asked for have ended.

A decode that is pushed to owns no handle: what it knows of a producer's WRITEs is what it told the
producer, and what the producer says afterwards. From the moment a producer knows where to write,
its bytes may land; so the decode waits until each producer has said that it has ended, or is dead.

How many producers there are is first known from the first notification, which names the number. A
notification that names a number is itself a sign that the others were told, whatever the order in
which this side's own calls come.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ExpectedWrites:
    """The writes of one request's producers.

    ``peers`` are the agents whose death ends their writes; if there is one, its death ends all.
    """

    peers: tuple[str, ...] = ()
    told: bool = False
    producers: int = 0  # the greatest number that a notification has named
    ended: int = 0  # how many have said so
    _named: set[str] = field(default_factory=set)  # those of `ended` that said who they were
    _lost: set[str] = field(default_factory=set)

    @property
    def outstanding(self) -> bool:
        """Tell whether bytes may still be written."""
        if not (self.told or self.ended):
            return False
        if self.peers and self._lost.issuperset(self.peers):
            return False
        return not self.producers or self._gone < self.producers

    @property
    def _gone(self) -> int:
        # A dead producer may have ended before it died. Where somebody ended without saying who,
        # counting the dead too could count one twice, and end the wait under another's writes.
        if self.ended > len(self._named):
            return self.ended
        # Where there are fewer producers than peers, a dead peer may be no producer at all, and stands
        # for one only when no peer is left that could be.
        if self.producers < len(self.peers) and not self._lost.union(self._named).issuperset(self.peers):
            return self.ended
        return self.ended + len(self._lost - self._named)

    def notified(self, producers: int, peer: str | None) -> bool:
        """Note that one producer has ended; tell whether one was still waited for."""
        self.producers = max(self.producers, producers)
        if peer in self._named or self._gone >= self.producers:
            return False
        self.ended += 1
        if peer is not None:
            self._named.add(peer)
        return True

    def lost(self, peer: str) -> bool:
        """Note that a producer is dead; tell whether its writes may have been cut short by that."""
        waited = self.outstanding
        self._lost.add(peer)
        # One that had ended leaves the others' writes as they are; unless it was the last that could
        # have brought what is missing, which then never comes.
        return waited and (peer not in self._named or not self.outstanding)
