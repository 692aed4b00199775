"""The demo's processes: they talk, they fail with words, they end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfast import BackendUnavailableError
from kvfast.demo.errors import DeadlineError, DemoError, ProcessEndedError
from kvfast.demo.process import Child, uninterrupted
from tests.cli.command import first_on_path, wait_until_gone

PUPIL = """
import os, sys
from kvfast import BackendUnavailableError
from kvfast.demo.process import converse

with converse(int(sys.argv[1])) as parent:
    print("a stray line on stdout")
    os.write(1, b"and one from below Python\\n")
    parent.send({"pid": os.getpid()})
    for message in parent:
        if message["say"] == "raise":
            raise RuntimeError("out of order")
        if message["say"] == "unavailable":
            raise BackendUnavailableError("not installed")
        if message["say"] == "silent":
            raise KeyError
        if message["say"] == "crash":
            print("about to crash", file=sys.stderr, flush=True)
            os.abort()
        if message["say"] == "ask":
            message = parent.ask({"question": 1})
        parent.send({"echo": message})
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "kvfast_pupil.py").write_text(PUPIL)
    return first_on_path(tmp_path)


@pytest.fixture
def child(env: dict[str, str]) -> Iterator[Child]:
    pupil = Child("pupil", "kvfast_pupil", [], env)
    try:
        assert pupil.receive(60) == {"pid": pupil.pid}
        yield pupil
    finally:
        pupil.close()


def test_messages_go_both_ways_and_stray_output_goes_to_the_log(child: Child) -> None:
    for n in range(3):
        child.send({"say": "something", "n": n})
        assert child.receive(60) == {"echo": {"say": "something", "n": n}}
    child.send({"say": "ask"})
    assert child.receive(60) == {"question": 1}
    child.send({"answer": 2})
    assert child.receive(60) == {"echo": {"answer": 2}}
    assert "and one from below Python" in child.log()


def test_a_long_message_arrives_whole(child: Child) -> None:
    child.send({"say": "something", "long": "x" * 300_000})
    assert child.receive(60)["echo"]["long"] == "x" * 300_000


@pytest.mark.parametrize(
    ("say", "error", "words"),
    [
        ("raise", DemoError, "pupil: out of order"),
        ("unavailable", BackendUnavailableError, "pupil: not installed"),
        ("silent", DemoError, "pupil: KeyError"),
    ],
)
def test_an_exception_is_told(child: Child, say: str, error: type[Exception], words: str) -> None:
    child.send({"say": say})
    with pytest.raises(error, match=words) as caught:
        child.receive(60)
    assert type(caught.value) is error
    assert wait_until_gone([child.pid]) == []
    assert "Traceback" in child.log()


def test_a_crash_is_told_with_its_last_words(child: Child) -> None:
    child.send({"say": "crash"})
    with pytest.raises(ProcessEndedError, match=r"(?s)pupil was killed by SIGABRT; .*about to crash"):
        child.receive(60)
    assert not child.alive


def test_sending_to_one_that_has_ended_is_told(child: Child) -> None:
    child.kill()
    with pytest.raises(ProcessEndedError, match="pupil was killed by SIGKILL"):
        child.send({"say": "something"})


def test_silence_is_a_deadline_error(child: Child) -> None:
    with pytest.raises(DeadlineError, match="pupil said nothing for 0 s") as caught:
        child.receive(0.0)
    assert isinstance(caught.value, TimeoutError)


def test_stop_and_cont_have_worked_when_they_return(child: Child) -> None:
    for _ in range(3):
        child.signal(signal.SIGSTOP, os.WSTOPPED)
        assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        child.signal(signal.SIGCONT, os.WCONTINUED)
        child.send({"say": "something"})
        assert child.receive(60)["echo"] == {"say": "something"}


def test_stopping_one_that_has_died_is_told(child: Child) -> None:
    child.send({"say": "crash"})
    with pytest.raises(ProcessEndedError):
        child.receive(60)
    with pytest.raises((ProcessEndedError, ProcessLookupError)):
        child.signal(signal.SIGSTOP, os.WSTOPPED)


def test_a_stopped_one_can_be_killed(child: Child) -> None:
    child.signal(signal.SIGSTOP, os.WSTOPPED)
    child.kill()
    assert not child.alive


def test_a_stopped_one_ends_with_its_parent(env: dict[str, str]) -> None:
    parent = (
        "import os, signal, sys\n"
        "from kvfast.demo.process import Child\n"
        "pupil = Child('pupil', 'kvfast_pupil', [])\n"
        "pupil.receive(60)\n"
        "pupil.signal(signal.SIGSTOP, os.WSTOPPED)\n"
        "print(pupil.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", parent], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert wait_until_gone([int(ended.stdout)]) == []


def test_ctrl_c_is_held_back_and_not_lost() -> None:
    reached = []

    def start_something() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            reached.append("end of the block")
        reached.append("after the block")

    with pytest.raises(KeyboardInterrupt):
        start_something()
    assert reached == ["end of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
