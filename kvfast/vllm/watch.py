"""Agents that stand before a worker's agent for one call of vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvfast import notifs

from .state import KvfastState


class _Before:
    def __init__(self, agent: Any) -> None:
        self._kvfast_agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kvfast_agent, name)


class NotifWatch(_Before):
    """Tells which notifications could not be sent; the exceptions go on."""

    def __init__(self, agent: Any, on_failure: Callable[[str, Exception], None]) -> None:
        super().__init__(agent)
        self._kvfast_on_failure = on_failure
        self.sent = 0

    def send_notif(self, agent_name: str, *args: Any, **kwargs: Any) -> Any:
        """Send a notification."""
        try:
            result = self._kvfast_agent.send_notif(agent_name, *args, **kwargs)
        except Exception as error:
            self._kvfast_on_failure(agent_name, error)
            raise
        self.sent += 1
        return result


class NotifFilter(_Before):
    """Gives no malformed notification: vLLM's engine would end with one."""

    def __init__(self, agent: Any, state: KvfastState) -> None:
        super().__init__(agent)
        self._kvfast_state = state

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Return the well-formed ones."""
        return {
            peer: [raw for raw in raws if is_well_formed(raw, peer, self._kvfast_state)]
            for peer, raws in self._kvfast_agent.get_new_notifs().items()
        }


class QueueFilter:
    """A queue of notifications that gives no malformed one."""

    def __init__(self, inner: Any, state: KvfastState) -> None:
        self._inner = inner
        self._state = state

    def get_nowait(self) -> bytes:
        """Return the next well-formed one.

        Raises
        ------
        queue.Empty
            If there is none.
        """
        while True:
            raw: bytes = self._inner.get_nowait()
            if is_well_formed(raw, "", self._state):
                return raw

    def empty(self) -> bool:
        """Tell whether there is nothing, well-formed or not."""
        return bool(self._inner.empty())


class Tolerant(_Before):
    """Lets no clean-up end another: what can't be released is logged, and the rest is tried."""

    _CLEANUPS = ("release_xfer_handle", "release_dlist_handle", "remove_remote_agent", "deregister_memory")

    def __init__(self, agent: Any, state: KvfastState) -> None:
        super().__init__(agent)
        self._kvfast_state = state

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        return self._kvfast_tolerant(name, method) if name in self._CLEANUPS else method

    def _kvfast_tolerant(self, name: str, method: Any) -> Callable[..., Any]:
        def attempt(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                self._kvfast_state.warn(name, "shutdown goes on: %s%r raised %r", name, args, error)
                return None

        return attempt


def is_well_formed(raw: Any, peer: str, state: KvfastState) -> bool:
    """Tell whether a notification can be read; count and log one that can't."""
    message = notifs.parse(raw)
    if not isinstance(message, notifs.BadNotif):
        return True
    state.count("bad_notifs")
    state.warn(f"notif {peer}", "malformed notification from %r ignored: %s", peer, message.reason)
    return False
