"""Wire format of notifications: vLLM's, so that either end may be vLLM.

=====================  ===========================================================================
``b"<req_id>:<n>"``    one consumer has read the blocks of a request; n of them will, in all
``b"HB:<id>,<id>"``    a heartbeat: the leases of these requests are to be extended
=====================  ===========================================================================

Both are UTF-8. What the format leaves open is settled here as vLLM does it, or so that a peer can
do the least harm:

- A request id may contain colons: the count is what follows the last one.
- The count is 1 to 9 ASCII digits, and not zero; leading zeros are fine. No sign, space, underscore
  or digit of another script, all of which `int` would take.
- What begins with ``HB:`` is a heartbeat, whatever follows: a request whose id is ``HB``, or begins
  with ``HB:``, can't be told from one. So `consumed` refuses to build a message for such an id; one
  from a peer that does is read as the heartbeat it looks like.
- A heartbeat may name nobody, and an empty id between its commas is left out: no request has it,
  and the other ids must not lose their extension to it. An id with a comma can't be named in a
  heartbeat; `heartbeat` refuses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .ratelimit import RateLimit

if TYPE_CHECKING:
    from .stats import Stats

logger = logging.getLogger(__name__)

_HEARTBEAT: Final = "HB:"
_MAX_DIGITS: Final = 9
_MAX_COUNT: Final = 10**_MAX_DIGITS - 1
_EXCERPT: Final = 40  # characters or bytes of a peer's message that a reason may quote


@dataclass(frozen=True, slots=True)
class Consumed:
    """One of `count` consumers has read the blocks of a request."""

    req_id: str
    count: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The leases of these requests are to be extended. Ids may repeat; none is empty."""

    req_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BadNotif:
    """A message that is no notification, and why, in a sentence of bounded length."""

    raw: object
    reason: str


def parse(raw: object) -> Consumed | Heartbeat | BadNotif:
    """Read a notification. Never raises, whatever a peer sends.

    Parameters
    ----------
    raw : bytes
        The message as NIXL gives it. Anything that is not bytes is a `BadNotif`.
    """
    if not isinstance(raw, bytes):
        return BadNotif(raw, f"not bytes but {type(raw).__name__}")
    try:
        text = str(raw, "utf-8")
    except UnicodeDecodeError as error:
        return BadNotif(raw, f"not UTF-8 at byte {error.start}: {_excerpt(raw)}")
    if text.startswith(_HEARTBEAT):
        return Heartbeat(tuple(filter(None, text[len(_HEARTBEAT) :].split(","))))
    return _parse_consumed(raw, text)


def _parse_consumed(raw: bytes, text: str) -> Consumed | BadNotif:
    req_id, colon, digits = text.rpartition(":")
    if not colon:
        return BadNotif(raw, f"no count in {_excerpt(text)}")
    if not req_id:
        return BadNotif(raw, f"no request id in {_excerpt(text)}")
    # isdigit alone takes digits of every script.
    if len(digits) > _MAX_DIGITS or not (digits.isascii() and digits.isdigit()):
        return BadNotif(raw, f"the count is not 1 to {_MAX_DIGITS} digits but {_excerpt(digits)}")
    count = int(digits)
    if count == 0:
        return BadNotif(raw, "the count is zero")
    return Consumed(req_id, count)


class NotifReader:
    """Reads what an agent was notified of; what is malformed is counted, logged and ignored.

    Parameters
    ----------
    stats : Stats
        Counts the malformed ones, in ``bad_notifs``.
    clock : callable
        Gives the time in seconds, for the rate of log lines.
    """

    def __init__(self, stats: Stats, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stats: Final = stats
        self._limit: Final = RateLimit(clock=clock)

    def read(self, new_notifs: Mapping[str, Iterable[object]]) -> list[tuple[str, Consumed | Heartbeat]]:
        """Return the notifications that are well formed, each with the name of the peer it is from.

        Parameters
        ----------
        new_notifs : mapping of str to messages
            By peer: what ``agent.get_new_notifs()`` returns.
        """
        parsed = [(peer, parse(raw)) for peer, messages in new_notifs.items() for raw in messages]
        for peer, notif in parsed:
            if isinstance(notif, BadNotif):
                self._ignore(peer, notif)
        return [(peer, notif) for peer, notif in parsed if not isinstance(notif, BadNotif)]

    def _ignore(self, peer: str, notif: BadNotif) -> None:
        self._stats.count("bad_notifs")
        dropped = self._limit.allow(peer)
        if dropped is not None:
            # The peer's name as a repr too: the peer chose it, and it may hold a line break.
            logger.warning("notification of %r ignored: %s (%d more before)", peer, notif.reason, dropped)


def consumed(req_id: str, count: int) -> bytes:
    """Build the message that says: one of `count` consumers has read this request's blocks.

    Raises
    ------
    TypeError
        If `req_id` is not a str, or `count` not an int.
    ValueError
        If `req_id` is empty, is ``HB`` or begins with ``HB:``, or has no UTF-8 form, or `count` is
        not 1 to 999,999,999.
    """
    encoded = _encoded(req_id)
    if f"{req_id}:".startswith(_HEARTBEAT):
        raise ValueError(f"a message for this request id would read as a heartbeat: {req_id!r}")
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"count must be an int, not {count!r}")
    if not 1 <= count <= _MAX_COUNT:
        raise ValueError(f"count must be 1 to {_MAX_COUNT}, not {count!r}")
    return b"%b:%d" % (encoded, count)


def heartbeat(req_ids: Iterable[str]) -> bytes:
    """Build the message that asks to extend the leases of these requests.

    Raises
    ------
    TypeError
        If `req_ids` is a single str or bytes, or one of them is not a str.
    ValueError
        If an id is empty, contains a comma, or has no UTF-8 form.
    """
    if isinstance(req_ids, (str, bytes)):
        raise TypeError(f"req_ids must be several request ids, not {req_ids!r}")
    return _HEARTBEAT.encode() + b",".join(map(_encoded_without_comma, req_ids))


def _encoded_without_comma(req_id: str) -> bytes:
    encoded = _encoded(req_id)
    if b"," in encoded:
        raise ValueError(f"a request id with a comma can't be named in a heartbeat: {req_id!r}")
    return encoded


def _encoded(req_id: str) -> bytes:
    if not isinstance(req_id, str):
        raise TypeError(f"a request id must be a str, not {req_id!r}")
    if not req_id:
        raise ValueError("a request id must not be empty: ''")
    try:
        return req_id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a request id must have a UTF-8 form: {req_id!r}") from None


def _excerpt(value: str | bytes) -> str:
    # Cut before and after: the repr of a huge message is huger, and one character can take ten.
    shown = repr(value[:_EXCERPT])
    return shown if len(value) <= _EXCERPT and len(shown) <= 2 * _EXCERPT else shown[: 2 * _EXCERPT] + "..."
