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


class OneNotif(_Before):
    """Gives one notification, once."""

    def __init__(self, agent: Any, raw: bytes) -> None:
        super().__init__(agent)
        self._kvfast_notifs = {"": [raw]}  # whose it is, vLLM does not look at

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Return it, or nothing from then on."""
        notifs, self._kvfast_notifs = self._kvfast_notifs, {}
        return notifs


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
                self._kvfast_state.warn(name, "clean-up goes on: %s%r raised %r", name, args, error)
                return None

        return attempt


def why_malformed(raw: Any) -> str | None:
    """Return why a notification can't be read, or None."""
    message = notifs.parse(raw)
    return message.reason if isinstance(message, notifs.BadNotif) else None
