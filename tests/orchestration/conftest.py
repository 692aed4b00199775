"""Rigs on both backends and both scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.orchestration.rigs import ReceiveRig, SendRig


@pytest.fixture
def receive_rig(backend: ModuleType, scan: str) -> Iterator[Callable[..., ReceiveRig]]:
    """Make a Receiver's rig, with options. At the end no handle may be left."""
    rigs: list[ReceiveRig] = []

    def make(**options: Any) -> ReceiveRig:
        rigs.append(ReceiveRig(backend=backend, scan=scan, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.finish(rig.receiver._advance)


@pytest.fixture
def send_rig(backend: ModuleType, scan: str) -> Iterator[Callable[..., SendRig]]:
    """Make a Sender's rig, with options. At the end no handle may be left."""
    rigs: list[SendRig] = []

    def make(**options: Any) -> SendRig:
        rigs.append(SendRig(backend=backend, scan=scan, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.finish(rig.sender._advance)


@pytest.fixture
def rig(receive_rig: Callable[..., ReceiveRig]) -> ReceiveRig:
    """A Receiver with the defaults."""
    return receive_rig()


@pytest.fixture
def sending(send_rig: Callable[..., SendRig]) -> SendRig:
    """A Sender with the defaults."""
    return send_rig()
