"""Errors of both packages; ``kvfast`` re-exports them."""

from __future__ import annotations


class KvfastError(Exception):
    """Base of every error that kvfast raises for a caller's mistake or a missing part."""


class BackendUnavailableError(KvfastError, RuntimeError):
    """A backend, or NIXL itself, is not there or can't be used; the message says what to do."""


class UnknownRequestError(KvfastError, KeyError):
    """A request id that is not tracked."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would quote a whole sentence.
        return str(self.args[0]) if self.args else ""


class DuplicateRequestError(KvfastError, ValueError):
    """A request id that is in use already."""


class DuplicateHandleError(KvfastError, ValueError):
    """A transfer handle that is in the table, or in the same call, already."""


class WrongThreadError(KvfastError, RuntimeError):
    """A call from a thread that does not own the object."""


class ConcurrentSweepError(WrongThreadError):
    """A sweep of a table that is being swept already."""


class ClosedError(KvfastError, RuntimeError):
    """A call on an object after ``close()``."""
