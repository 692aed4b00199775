"""What can go wrong in a measurement."""

from __future__ import annotations

from kvfast_ext.errors import KvfastError


class BenchError(KvfastError, RuntimeError):
    """What was to be measured is not what happened: there is no number."""
