"""How a test names the setups that it runs on."""

from __future__ import annotations

import pytest

from tests.vllm.engine.setups import Setup


def on(*setups: Setup) -> pytest.MarkDecorator:
    """Run a test on these setups."""
    return pytest.mark.parametrize("setup", setups, ids=lambda setup: setup.name.replace(" ", "-"))
