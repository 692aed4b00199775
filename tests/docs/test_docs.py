"""The documents' code runs, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvfast
from kvfast import Receiver, Sender
from kvfast.testing import FakeClock, ScriptedAgent
from kvfast_ext.contract import BACKEND_EXPORTS
from tests.docs.reference import DOCUMENT, PARTS, rendered
from tests.nixl.rank import nixl_missing
from tests.orchestration.rigs import in_thread

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOWTOS = sorted(DOCS.glob("howto-*.md"))

_BLOCK = re.compile(r'^```python(?: title="(\S*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+?)(?:#([^)]*))?\)")


def blocks(path: Path) -> list[tuple[str, str]]:
    """Return the title, or "", and the code of each Python block."""
    return _BLOCK.findall(path.read_text())


class Engine:
    """What the how-tos take for granted: their names, over a scripted agent."""

    def __init__(self) -> None:
        self.agent = ScriptedAgent()
        self.clock = FakeClock()

    def names(self) -> dict[str, Any]:
        """Return what their code may use."""
        return {
            "receiver": self.make_receiver(),
            "sender": self.make_sender(),
            "make_receiver": self.make_receiver,
            "make_sender": self.make_sender,
            "prepare": self.agent.prepare,
            "prepare_other": self.agent.prepare,
            "land": lambda req_id: self.end("DONE"),
            "break_off": lambda req_id: self.end("ERR"),
            "wait": self.clock.advance,
            "run_in_thread": in_thread,
        }

    def make_receiver(self, **options: Any) -> Receiver:
        return Receiver(self.agent, clock=self.clock, **options)

    def make_sender(self, **options: Any) -> Sender:
        return Sender(self.agent, clock=self.clock, **options)

    def end(self, state: str) -> None:
        self.agent.set_states(dict.fromkeys(self.agent.unreleased, state))


@pytest.mark.parametrize("path", HOWTOS, ids=lambda path: path.stem)
def test_howtos(path: Path) -> None:
    engine = Engine()
    names = engine.names()
    found = blocks(path)
    assert found
    for number, (_, code) in enumerate(found, 1):
        exec(compile(code, f"{path.name}, block {number}", "exec"), names)
    engine.agent.assert_drained()


def test_all_howtos_are_there() -> None:
    names = {"abort", "benchgate", "stalls", "hybrid-models", "threads", "metrics", "test-your-engine"}
    assert {path.stem.removeprefix("howto-") for path in HOWTOS} == names


@pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")
def test_tutorial(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for name, code in blocks(DOCS / "tutorial.md"):
        files[name] = files.get(name, "") + code
    assert list(files) == ["memory.py", "prefill.py", "decode.py"]
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    # The listener must be there before the client comes: the tutorial's reader starts it first.
    (tmp_path / "decode.py").write_text(_WAIT_FOR_SOCKET + files["decode.py"])
    start: Callable[[str], Any] = lambda name: subprocess.Popen(  # noqa: E731
        [sys.executable, name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    prefill, decode = start("prefill.py"), start("decode.py")
    try:
        told = decode.communicate(timeout=300)
        told_by_prefill = prefill.communicate(timeout=300)
    finally:
        for process in (prefill, decode):
            process.kill()
    assert decode.returncode == 0, told
    assert prefill.returncode == 0, told_by_prefill
    page = (DOCS / "tutorial.md").read_text()
    for line in (told[0].splitlines()[-1], told_by_prefill[0].splitlines()[-1]):
        assert f"\n{line}\n" in page


def test_tutorial_lets_the_prefill_die(tmp_path: Path) -> None:
    for name, code in blocks(DOCS / "tutorial.md"):
        with (tmp_path / name).open("a") as file:
            file.write(code.replace("REQUESTS = 20\n", "REQUESTS = 1_000_000\n"))
    decode_code = (tmp_path / "decode.py").read_text()
    assert "1_000_000" in decode_code
    # It says when it is under way, which the reader sees by the time that has passed.
    (tmp_path / "decode.py").write_text(_WAIT_FOR_SOCKET + decode_code.replace(_STEP, _STEP + _TELL))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    options: dict[str, Any] = {"cwd": tmp_path, "env": env, "stdout": subprocess.PIPE, "text": True}
    prefill, decode = (
        subprocess.Popen([sys.executable, name], **options) for name in ("prefill.py", "decode.py")
    )
    try:
        assert decode.stdout is not None
        for line in decode.stdout:
            if line == "under way\n":
                prefill.kill()
                break
        told = decode.communicate(timeout=300)[0].splitlines()
    finally:
        for process in (prefill, decode):
            process.kill()
            process.communicate()
    assert decode.returncode == 0, told
    ended = re.fullmatch(r"decode: (\d+) finished, (\d+) failed, left: \[\]", told[-1])
    assert ended, told
    assert 50 <= int(ended[1]) < 1_000_000
    # None, if the kill came between two requests.
    failed = [line for line in told if re.fullmatch(r"req-\d+ failed; blocks \[\[.*\]\] hold garbage", line)]
    assert len(failed) == int(ended[2])


_STEP = "    now_finished, now_failed = step()\n"
_TELL = """\
    if finished < 50 <= finished + now_finished:
        print("under way", flush=True)
"""
_WAIT_FOR_SOCKET = """\
import os, time
deadline = time.monotonic() + 240
while not os.path.exists("kv.sock") and time.monotonic() < deadline:
    time.sleep(0.01)
"""


def test_reference_is_current() -> None:
    assert DOCUMENT.read_text() == rendered(), "run: python -m tests.docs.reference"


def test_reference_has_every_public_name() -> None:
    names = {thing.__name__ for things in PARTS.values() for thing in things}
    assert set(kvfast.__all__) <= names | {"BACKEND", "__version__", "notifs", "stats"}
    assert {*BACKEND_EXPORTS, "SweepResult"} <= names


def test_every_guarding_test_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "invariants.md").read_text()))
    assert len(named) > 50
    missing = [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert not missing


@pytest.mark.parametrize("path", sorted([*DOCS.glob("*.md"), ROOT / "README.md"]), ids=lambda path: path.stem)
def test_links(path: Path) -> None:
    for target, _ in _LINK.findall(path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
