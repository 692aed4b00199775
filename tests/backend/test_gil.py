"""The GIL is free while compiled code asks for states. Proved by a meeting, not by time.

The C functions of the capsule are ``pthread_barrier_wait``: each check of a sweep waits until another
thread has come to the barrier too. That thread is Python: to come a second time, between two checks of
the same sweep, it needs the GIL. If the sweep held it, both would wait for ever, which a watchdog
in the process ends.
"""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

SCRIPT = """
import ctypes, faulthandler, sys, threading
faulthandler.dump_traceback_later(60, exit=True)  # a thread in C: it needs no GIL
sys.path[:0] = {path!r}
from kvfast_ext import select_backend
from tests.backend.engines import Ops, new_capsule

libc = ctypes.CDLL(None)
barrier = ctypes.create_string_buffer(256)
assert libc.pthread_barrier_init(barrier, None, 2) == 0
address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
# A context and a handle are never equal threads: 0, without a callback that could give the GIL up.
meet, leave = address(libc.pthread_barrier_wait), address(libc.pthread_equal)
ops = Ops(1, ctypes.sizeof(Ops), ctypes.addressof(barrier), {functions})
backend = select_backend("cython")
bound = backend.bind(new_capsule(ctypes.addressof(ops)))
N = 5
came = []

def other():
    for _ in range(N):
        libc.pthread_barrier_wait(barrier)  # ctypes gives the GIL up for the call
        came.append(threading.get_ident())

thread = threading.Thread(target=other, daemon=True)
thread.start()
{body}
thread.join()
assert len(came) == N and came[0] != threading.get_ident()
print("met", len(came))
"""

SWEEP = """
table = backend.TransferTable(bound, scan="{scan}")
table.add("r", *range(1, N + 1))
result = backend.pop_done_transfers(table)
assert result.done == {{"r"}}, result
"""
TRY_RELEASE = """
released = backend.try_release(bound, list(range(1, N + 1)))
assert len(released) == N
"""
# status, telemetry, release: which of them meet the other thread, and which return 0 at once.
# pthread_barrier_wait returns 0 to one of the two and -1 to the other: DONE, or a failure, no matter here.
CASES = {
    "checks of a full sweep": ("meet, leave, leave", SWEEP.format(scan="all")),
    "checks of a watching sweep": ("meet, leave, leave", SWEEP.format(scan="watch")),
    "telemetry of a full sweep": ("leave, meet, leave", SWEEP.format(scan="all")),
    "telemetry of a watching sweep": ("leave, meet, leave", SWEEP.format(scan="watch")),
    "releases of a sweep": ("leave, leave, meet", SWEEP.format(scan="all")),
    "checks of try_release": ("meet, leave, leave", TRY_RELEASE),
    "releases of try_release": ("leave, leave, meet", TRY_RELEASE),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pthread barriers by ctypes")
@pytest.mark.parametrize("case", sorted(CASES))
def test_another_python_thread_runs_between_two_calls_of_one_sweep(compiled: ModuleType, case: str) -> None:
    functions, body = CASES[case]
    script = SCRIPT.format(path=sys.path, functions=functions, body=body)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "met 5"), done.stderr


HELD = """
import ctypes, faulthandler, sys, threading
held, free = ctypes.PyDLL(None), ctypes.CDLL(None)  # calls through a PyDLL keep the GIL
barrier = ctypes.create_string_buffer(256)
free.pthread_barrier_init(barrier, None, 2)

def other():
    for _ in range(2):
        free.pthread_barrier_wait(barrier)

threading.Thread(target=other, daemon=True).start()
sys.setswitchinterval(1e9)  # nobody takes the GIL from a thread that doesn't give it
print("go", flush=True)
faulthandler.dump_traceback_later(1, exit=True)
list(map(held.pthread_barrier_wait, [barrier] * 2))
print("met")
"""


def test_the_proof_fails_where_the_gil_is_held() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "go\n"), done.stderr
