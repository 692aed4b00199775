"""Checks of what callers hand in: the value, as kvfast keeps it, or an error that names it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any, Final

from kvfast_ext import names

Blocks = tuple[tuple[int, ...], ...]

_NO_LIST: Final = (str, bytes, bytearray)

peer_name: Final = names.peer_name


def req_id(value: object) -> str:
    """Return a request id, as a plain str: a subclass may hash and compare in its own way.

    Raises
    ------
    TypeError
        If it is not a str.
    """
    if not isinstance(value, str):
        raise TypeError(f"a request id must be a str, not {value!r}")
    return value if type(value) is str else str.__str__(value)


def name(what: str, value: object) -> str:
    """Return the name of an agent, or of whatever `what` says."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {value!r}")
    return value


def peers(value: object) -> tuple[str, ...]:
    """Return the agents that a request deals with, each once: None, one name, or several.

    A name is a str, or bytes as ``add_remote_agent`` returns it: see `peer_name`.
    """
    if value is None:
        return ()
    if isinstance(value, (str, bytes)):
        return (peer_name("peer", value),)
    if isinstance(value, _NO_LIST) or not isinstance(value, Iterable):
        raise TypeError(f"peer must be a str or bytes, several of them, or None, not {value!r}")
    return tuple(dict.fromkeys(peer_name("a peer", one) for one in value))


def block_ids(value: object) -> Blocks:
    """Return block ids, one list for each KV-cache group.

    Raises
    ------
    TypeError
        If it is not a list of lists of ints.
    ValueError
        If a block id is negative.
    """
    if not isinstance(value, Sequence) or isinstance(value, _NO_LIST):
        raise TypeError(f"block_ids must be a list of lists, one for each KV-cache group, not {value!r}")
    return tuple(_group(group) for group in value)


def _group(value: Any) -> tuple[int, ...]:
    if isinstance(value, _NO_LIST) or not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        raise TypeError(f"block_ids must be one list of block ids for each KV-cache group, not {value!r}")
    return tuple(_block(block) for block in value)


def _block(value: Any) -> int:
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise TypeError(f"a block id must be an int, not {value!r}")
        value = index(value)
    if value < 0:
        raise ValueError(f"a block id must be zero or more, not {value!r}")
    return int(value)


def count(what: str, value: object) -> int:
    """Return a positive int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{what} must be 1 or more, not {value!r}")
    return value


def moment(what: str, value: object) -> float | None:
    """Return a reading of a clock, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds or None, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number of seconds, not {value!r}")
    return float(value)


def message(value: object) -> bytes:
    """Return a notification's bytes."""
    if not isinstance(value, bytes):
        raise TypeError(f"a message must be bytes, not {value!r}")
    return value


def function(what: str, value: object) -> Callable[..., Any]:
    """Return something that can be called."""
    if not callable(value):
        raise TypeError(f"{what} must be callable, not {value!r}")
    return value


def functions(what: str, value: object) -> list[Callable[..., Any]]:
    """Return several things that can be called."""
    if isinstance(value, _NO_LIST) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a sequence of functions, not {value!r}")
    return [function(f"each of {what}", one) for one in value]
