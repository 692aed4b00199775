"""What can go wrong in a demo that is no failed check."""

from __future__ import annotations

from kvfast_ext.errors import KvfastError


class DemoError(KvfastError, RuntimeError):
    """The demo could not be carried out; nothing is known about the checks."""


class ProcessEndedError(DemoError):
    """A process of the demo ended when it should not."""


class DeadlineError(DemoError, TimeoutError):
    """A process of the demo did not answer in time."""


class PortError(DemoError):
    """The port for the metrics can't be listened on."""
