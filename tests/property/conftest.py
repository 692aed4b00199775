"""How many programs are run: KVFAST_HYPOTHESIS_PROFILE is "dev" (default), "ci" or "nightly"."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

_COMMON = settings(
    deadline=None,  # a loaded machine is no failure
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

settings.register_profile("dev", _COMMON, max_examples=60)
# The same programs at each run: what CI says changes only with the code.
settings.register_profile("ci", _COMMON, max_examples=2000, derandomize=True, database=None)
# Other programs each night. What fails is printed as a program that can be run again by itself.
settings.register_profile("nightly", _COMMON, max_examples=50_000, phases=tuple(set(Phase) - {Phase.explain}))
settings.load_profile(os.environ.get("KVFAST_HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep the log, some hundred lines a program, out of pytest's memory."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
