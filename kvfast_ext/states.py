"""What a state check can say about a handle, and what follows: the only table of it.

A handle is posted once and can't be called back, so a check has four outcomes that matter:

========  =======================================  =====================================
outcome   seen as                                  meaning
========  =======================================  =====================================
DONE      ``SUCCESS`` / ``"DONE"``                 all bytes landed
PROC      ``IN_PROG`` / ``"PROC"``                 DMA may be running; never release
LOST      ``NOT_FOUND`` (``nixlNotFoundError``)    the peer was removed under the
                                                   transfer; NIXL looks no longer, the
                                                   bytes may still land
FAILED    any other negative status, any other     terminal for NIXL
          exception, ``"ERR"``
========  =======================================  =====================================

LOST becomes FAILED where the peer is known to be dead: nothing lands over a dead connection.
Which of a sweep's failures are LOST is decided after all its checks (`table.py`), so the order
in which handles are checked does not matter.

The numbers are NIXL's own ``nixl_status_t``. They are the same in NIXL 0.10 to 1.5; the four
below -9 have no name in the Python binding, which raises an exception class for each instead.
"""

from __future__ import annotations

import operator
from typing import Any, Final

IN_PROG: Final = 1
SUCCESS: Final = 0
NOT_POSTED: Final = -1
INVALID_PARAM: Final = -2
BACKEND: Final = -3
NOT_FOUND: Final = -4
MISMATCH: Final = -5
NOT_ALLOWED: Final = -6
REPOST_ACTIVE: Final = -7
UNKNOWN: Final = -8
NOT_SUPPORTED: Final = -9
REMOTE_DISCONNECT: Final = -10
CANCELED: Final = -11
NO_TELEMETRY: Final = -12

# Our own, far from anything NIXL may add.
ERR_STRING: Final = -1001  # a test double returned "ERR"
ERR_EXCEPTION: Final = -1002  # an exception that is none of NIXL's
ERR_VALUE: Final = -1003  # a check returned something that is no state

NAMES: Final[dict[int, str]] = {
    IN_PROG: "PROC",
    SUCCESS: "DONE",
    NOT_POSTED: "NOT_POSTED",
    INVALID_PARAM: "INVALID_PARAM",
    BACKEND: "BACKEND",
    NOT_FOUND: "NOT_FOUND",
    MISMATCH: "MISMATCH",
    NOT_ALLOWED: "NOT_ALLOWED",
    REPOST_ACTIVE: "REPOST_ACTIVE",
    UNKNOWN: "UNKNOWN",
    NOT_SUPPORTED: "NOT_SUPPORTED",
    REMOTE_DISCONNECT: "REMOTE_DISCONNECT",
    CANCELED: "CANCELED",
    NO_TELEMETRY: "NO_TELEMETRY",
    ERR_STRING: "ERR",
    ERR_EXCEPTION: "EXCEPTION",
    ERR_VALUE: "BAD_STATE",
}

# The binding throws one of these classes for each negative status. Matched by name: the cu12 and
# cu13 bindings, other builds and test doubles each have classes of their own.
EXCEPTION_CODES: Final[dict[str, int]] = {
    "nixlNotPostedError": NOT_POSTED,
    "nixlInvalidParamError": INVALID_PARAM,
    "nixlBackendError": BACKEND,
    "nixlNotFoundError": NOT_FOUND,
    "nixlMismatchError": MISMATCH,
    "nixlNotAllowedError": NOT_ALLOWED,
    "nixlRepostActiveError": REPOST_ACTIVE,
    "nixlUnknownError": UNKNOWN,
    "nixlNotSupportedError": NOT_SUPPORTED,
    "nixlRemoteDisconnectError": REMOTE_DISCONNECT,
    "nixlCancelledError": CANCELED,
    "nixlNoTelemetryError": NO_TELEMETRY,
}

_STRING_CODES: Final[dict[str, int]] = {"DONE": SUCCESS, "PROC": IN_PROG, "ERR": ERR_STRING}


def name_of(code: int) -> str:
    """Return the name of a status code, as `HandleFailure.status` has it."""
    return NAMES.get(code, f"STATUS_{code}")


def code_of_exception(error: BaseException) -> int:
    """Return the status code that an exception of a state check stands for."""
    for cls in type(error).__mro__:
        code = EXCEPTION_CODES.get(cls.__name__)
        if code is not None:
            return code
    return ERR_EXCEPTION


def code_of_value(value: Any) -> int:
    """Return the status code of what a state check returned: a string, or a ``nixl_status_t``.

    Nothing else may be taken for DONE: not False, not 0.5, not a large number cut down.
    """
    if isinstance(value, str):
        return _STRING_CODES.get(value, ERR_VALUE)
    if isinstance(value, bool):
        return ERR_VALUE
    try:
        return checked_code(operator.index(value))
    except TypeError:
        return ERR_VALUE


def checked_code(code: int) -> int:
    """Return a status code as it is, or ERR_VALUE if it is none."""
    return code if -(2**31) <= code <= IN_PROG else ERR_VALUE


def must_wait(code: int) -> bool:
    """Tell whether bytes of a handle in this state may still land: PROC, or LOST."""
    return code in (IN_PROG, NOT_FOUND)
