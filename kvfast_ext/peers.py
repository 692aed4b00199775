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
_FIRST_CROWD: Final = 64


class PeerTokens:
    """Tokens for peer names, and which of them are dead."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._dead: set[int] = set()
        self._free: list[int] = []
        self._next = NO_PEER + 1
        self._crowd = _FIRST_CROWD

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
            token = self._new()
            self._tokens[name] = token
            self._names[token] = name
        return token

    def _new(self) -> int:
        if self._free:
            return self._free.pop()
        self._next += 1
        return self._next - 1

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
        if self._tokens.get(self._names[token]) == token:
            del self._tokens[self._names[token]]
        self._dead.add(token)  # last: what an interrupt comes before is done again

    def is_dead(self, token: int) -> bool:
        """Tell whether the connection behind a token is known to be gone."""
        return token in self._dead

    def forget(self, token: int) -> None:
        """Drop a token that no handle in the table carries; it will be given out again."""
        if self._tokens.get(self._names[token]) == token:
            del self._tokens[self._names[token]]
        self._dead -= {token}
        del self._names[token]
        self._free.append(token)

    @property
    def any_dead(self) -> bool:
        """Tell whether there are dead tokens to look after."""
        return bool(self._dead)

    def dead_tokens(self) -> list[int]:
        """Return the dead tokens."""
        return list(self._dead)

    def tokens(self) -> list[int]:
        """Return all tokens, dead or not."""
        return list(self._names)

    @property
    def crowded(self) -> bool:
        """Tell whether it is time to look for tokens to forget: peers come and go for ever."""
        return len(self._names) >= self._crowd

    def set_crowded(self) -> None:
        """Set the next such time to twice as many as are left: looking stays O(1) for each token."""
        self._crowd = max(_FIRST_CROWD, 2 * len(self._names))
