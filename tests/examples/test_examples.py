"""The examples run as they are, with real NIXL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nixl.rank import nixl_missing

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")


def run(name: str, *arguments: str) -> str:
    """Run an example, and return what it prints."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "last_line"),
    [
        ("custom_engine_pull", "40 requests, 40 READs, 10485760 bytes, every byte right"),
        ("custom_engine_push", "36 requests finished, every byte right; 4 aborted"),
        ("asyncio_engine", "36 requests finished, every byte right; 4 cancelled"),
    ],
)
def test_engines(name: str, last_line: str) -> None:
    assert run(name, "40").splitlines()[-1] == last_line


def test_release_is_not_a_fence() -> None:
    # Facts about NIXL that kvfast is built on. If one of these lines changes, so must docs/design.md.
    told = [line.strip() for line in run("release_is_not_a_fence").splitlines() if line.startswith("   ")]
    assert told == [
        "state PROC, 0% of the bytes have landed",
        "release returned without an error: the blocks look free",
        "afterwards 100% of the bytes have landed",
        "state raises nixlNotFoundError, 0% of the bytes have landed",
        "release returned without an error: the blocks look free",
        "afterwards 100% of the bytes have landed",
        "100% of the bytes have landed, the peer has heard []",
        "state DONE",
        "and now the peer has heard [b'read it']",
        "state DONE; posted were 17s, the peer has [34]",
        "state raises nixlRemoteDisconnectError, check_remote_metadata True",
    ]


@pytest.mark.parametrize("name", ["custom_engine_pull", "custom_engine_push", "asyncio_engine"])
def test_engines_are_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 150
