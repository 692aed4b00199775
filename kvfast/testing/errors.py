"""Exceptions named like those of NIXL's binding, and the state words that stand for them.

kvfast knows NIXL's exceptions by their class names, since each build of the binding has classes of
its own. So these work where NIXL is not installed.
"""

from __future__ import annotations

from typing import Final


class nixlNotFoundError(Exception):  # noqa: N801 - NIXL's name
    """NOT_FOUND: for a handle in flight, its peer was removed under it."""


class nixlRemoteDisconnectError(Exception):  # noqa: N801
    """REMOTE_DISCONNECT: the peer's process or its connection is gone."""


class nixlBackendError(Exception):  # noqa: N801
    """BACKEND: NIXL's transport reported an error."""


class nixlInvalidParamError(Exception):  # noqa: N801
    """INVALID_PARAM: no such handle."""


class nixlNotPostedError(Exception):  # noqa: N801
    """NOT_POSTED: the handle was prepared, and no transfer has been started."""


class nixlRepostActiveError(Exception):  # noqa: N801
    """REPOST_ACTIVE: the handle is in flight already."""


RAISING_STATES: Final[dict[str, type[Exception]]] = {
    "NOT_FOUND": nixlNotFoundError,
    "DISCONNECT": nixlRemoteDisconnectError,
    "BACKEND": nixlBackendError,
    "BOOM": RuntimeError,
}
"""State words that make a check raise. ``BOOM`` is an exception that is none of NIXL's."""

RETURNED_STATES: Final = ("DONE", "PROC", "ERR")
"""State words that a check returns as they are."""
