"""When a peer may be removed, and which peers have died.

``remove_remote_agent`` under a transfer is the one call that makes a handle LOST: NIXL looks no
longer, the bytes may still land, and nothing tells when. So whoever owns the agent asks a guard
first, and the guard removes the peer when nothing to it is outstanding any more.

That a peer is dead is known from one thing, the exception ``nixlRemoteDisconnectError``.
``check_remote_metadata`` stays True for a peer that was killed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from kvfast_ext import states
from kvfast_ext.loglater import LogLater

from . import checks
from .ratelimit import RateLimit
from .stats import Stats

logger = logging.getLogger(__name__)


class PeerUser(Protocol):
    """Whoever has transfers with peers: a Receiver, a Sender, a transfer table."""

    def outstanding_of(self, peer: str, /) -> int:
        """Return how many handles and expected writes of a peer are outstanding."""


class PeerGuard:
    """Removes peers from an agent, each when the last handle to it is gone.

    Give one guard to every Receiver and Sender of an agent, or make one over your own transfer
    tables and call `settle` after each sweep. A Receiver or Sender that is given none makes its own,
    and calls `settle` in its polls.

    Name the peers of your requests and handles: a handle without one is not waited for. If its peer is
    removed under it, it is LOST, and its request is held for the quarantine's ``lost_s``.

    `remove`, `settle` and `outstanding_of` look into the users' tables: they belong to the thread that
    owns these. The rest may be called from any thread.

    Parameters
    ----------
    agent : Agent
        The agent that knows the peers.
    *users : PeerUser
        Whose handles are waited for; `watch` adds more.
    stats : Stats, optional
        Where dead peers and refused removals are counted.
    clock : callable
        Gives the time in seconds, for the rate of log lines.

    Raises
    ------
    TypeError
        If `agent` has no ``remove_remote_agent``, or a user no ``outstanding_of``.
    """

    def __init__(
        self,
        agent: Any,
        *users: PeerUser,
        stats: Stats | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent = agent
        self._users: list[PeerUser] = []
        self.stats = stats if stats is not None else Stats(clock=clock)
        self._limit = RateLimit(clock=clock)
        self._lines = LogLater()
        self._removing: dict[str, None] = {}
        self._dead: set[str] = set()
        self._settling = threading.RLock()
        for user in users:
            self.watch(user)

    def watch(self, user: PeerUser) -> None:
        """Wait for this one's handles too."""
        if not callable(getattr(user, "outstanding_of", None)):
            raise TypeError(f"{user!r} has no outstanding_of(peer): give a Receiver, a Sender or a table")
        if not any(user is known for known in self._users):
            self._users.append(user)

    def unwatch(self, user: PeerUser) -> None:
        """Wait for this one no more. One that is not watched is fine."""
        self._users = [known for known in self._users if known is not user]

    # ---- removal

    def remove(self, peer: str) -> bool:
        """Remove a peer as soon as nothing to it is outstanding; tell whether that was at once.

        Until then, posts to it are declined. A removal that the agent refuses is logged and given
        up: NIXL refuses those of peers that it does not know.
        """
        self._removing[checks.name("peer", peer)] = None
        return peer in self.settle()

    def settle(self) -> list[str]:
        """Remove the peers that wait for it and have nothing outstanding; return their names."""
        self.tell()
        if not self._removing:
            return []
        with self._settling:
            free = [peer for peer in list(self._removing) if not self.outstanding_of(peer)]
            # A finaliser may come in between, and a removal may be refused.
            return [peer for peer in free if peer in self._removing and self._remove(peer)]

    def cancel(self, peer: str) -> bool:
        """Keep a peer whose removal waits; tell whether one did. One that is going on is too late for it."""
        with self._settling:
            return self._removing.pop(checks.name("peer", peer), True) is None

    def outstanding_of(self, peer: str) -> int:
        """Return how many handles and expected writes of a peer are outstanding."""
        return sum(user.outstanding_of(peer) for user in self._users)

    def is_removing(self, peer: str) -> bool:
        """Tell whether a removal waits: nothing new may be started with this peer."""
        return peer in self._removing

    @property
    def removing(self) -> frozenset[str]:
        """The peers whose removal waits."""
        return frozenset(self._removing)

    # ---- death

    def mark_dead(self, peer: str) -> None:
        """Note that a peer is dead, and log it. That alone removes nothing."""
        self.note_dead(checks.name("peer", peer))
        self.tell()

    def note_dead(self, *peers: str) -> None:
        """Note that peers are dead; `tell` logs it, or the next `settle`. Raises for no log's sake."""
        for peer in peers:
            if peer in self._dead:
                continue
            self._dead.add(peer)
            self.stats.count("dead_peers")
            dropped = self._limit.allow(peer)
            if dropped is not None:
                text = "peer %r is dead (%d more deaths before)"
                self._lines.add(logger, logging.WARNING, text, peer, dropped)

    def tell(self) -> None:
        """Log the deaths that were noted."""
        if self._lines.waiting:
            self._lines.write()

    def mark_alive(self, peer: str) -> None:
        """Note that a peer was added again under its old name."""
        self._dead.discard(checks.name("peer", peer))

    def is_dead(self, peer: str) -> bool:
        """Tell whether a peer is known to be dead."""
        return peer in self._dead

    @property
    def dead(self) -> frozenset[str]:
        """The peers known to be dead, and neither removed nor alive again since."""
        return frozenset(self._dead)

    def _remove(self, peer: str) -> bool:
        try:
            self._agent.remove_remote_agent(peer)
        except Exception as error:
            self.stats.count("refused_removals")
            logger.warning("removal of peer %r refused, given up: %r", peer, error)
            return False
        else:
            logger.info("peer %r removed", peer)
            return True
        finally:
            # Only now: posts must be declined until the agent has forgotten the peer.
            self._removing.pop(peer, None)
            self._dead.discard(peer)


def is_disconnect(error: BaseException) -> bool:
    """Tell whether an exception says that the peer's process or connection is gone."""
    return states.code_of_exception(error) == states.REMOTE_DISCONNECT
