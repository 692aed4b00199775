"""Which peers are dead, as far as their handles told.

``nixlRemoteDisconnectError`` on a handle means that the connection to its peer is gone, and with it
every transfer that was posted over it. That knowledge covers the handles of *that* connection only:
a peer that was restarted under the same name is another one, and its transfers must be treated with
the usual care. So each name stands for a token, a death retires the token, and handles added later
under the same name get a new one.
"""

from __future__ import annotations

from typing import Final

NO_PEER: Final = 0


class PeerTokens:
    """Tokens for peer names, and which of them are dead."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._dead: set[int] = set()
        self._next = NO_PEER + 1

    def token(self, name: str | None) -> int:
        """Return the token for handles added under `name` from now on.

        Raises
        ------
        TypeError
            If `name` is neither None nor a str.
        """
        if name is None:
            return NO_PEER
        if not isinstance(name, str):
            raise TypeError(f"peer must be a str or None, not {name!r}")
        token = self._tokens.get(name)
        if token is None:
            token, self._next = self._next, self._next + 1
            self._tokens[name] = token
            self._names[token] = name
        return token

    def name(self, token: int) -> str | None:
        """Return the name behind a token; None for handles without a peer."""
        return self._names.get(token)

    def tokens_of(self, name: str) -> list[int]:
        """Return all tokens that `name` has had and that are still known."""
        return [token for token, known in self._names.items() if known == name]

    def died(self, token: int) -> None:
        """Note that a handle of this connection ended with a disconnect."""
        if token == NO_PEER or token in self._dead:
            return
        self._dead.add(token)
        if self._tokens.get(self._names[token]) == token:
            del self._tokens[self._names[token]]

    def is_dead(self, token: int) -> bool:
        """Tell whether the connection behind a token is known to be gone."""
        return token in self._dead

    def forget(self, token: int) -> None:
        """Drop a dead token; its last handle has left the table."""
        self._dead.discard(token)
        self._names.pop(token, None)

    @property
    def any_dead(self) -> bool:
        """Tell whether there are dead tokens to look after."""
        return bool(self._dead)

    def dead_tokens(self) -> list[int]:
        """Return the dead tokens that still have a name."""
        return list(self._dead)
