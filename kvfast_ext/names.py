"""An agent's name, in the one form in which kvfast keeps it.

NIXL gives names in two forms: ``add_remote_agent`` returns bytes, and ``get_new_notifs`` has them as
str. Both name the same agent, so both are taken, and everything is looked up by the str.
"""

from __future__ import annotations


def peer_name(what: str, value: object) -> str:
    """Return an agent's name as a plain str.

    Parameters
    ----------
    what : str
        What a message calls the value, such as ``"peer"``.
    value : str or bytes
        The name; bytes are UTF-8, as ``add_remote_agent`` returns them.

    Raises
    ------
    TypeError
        If it is neither str nor bytes.
    ValueError
        If it is empty, or bytes that are not UTF-8.
    """
    if isinstance(value, str):
        # Of a subclass, its text: it may hash and compare in its own way.
        name = value if type(value) is str else str.__str__(value)
    elif isinstance(value, bytes):
        name = _decoded(what, value)
    else:
        raise TypeError(f"{what} must be a str or bytes, not {value!r}")
    if not name:
        raise ValueError(f"{what} must not be empty: {value!r}")
    return name


def _decoded(what: str, value: bytes) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        # The value is cut: a peer may have chosen it.
        raise ValueError(f"{what} is not UTF-8 at byte {error.start}: {value[:40]!r}") from None
