"""What a Receiver and a Sender promise, by number. Who checks what, and which fault shows it.

A check raises `InvariantBrokenError` with the number. Each was seen to fail: `test_faults.py` breaks the
code under test in one place at a time, and wants the right number.
"""

from __future__ import annotations

from typing import Final

INVARIANTS: Final = {
    1: "No request is reported, and none of its blocks named, while a handle of it, or a peer's expected "
    "write, is outstanding.",
    2: "Every tracked request is reported exactly once, in one set.",
    3: "A handle in PROC is never released; a LOST one not before its quarantine is over; every handle is "
    "released at most once, and exactly once by the time everything has drained.",
    4: "A request with a failure never sends a pending notification and never ends as finished, whatever "
    "comes later; and nothing more is posted for it.",
    5: "A send is finished only by DONE on all its WRITEs, or by the expected number of consumers.",
    6: "The blocks of a send are not given up, finished or expired, while a WRITE of it is in flight; and no "
    "WRITE is posted after its lease or its failure.",
    7: "For the same program both backends give equal results at every poll, and both scans end the same "
    "requests in the same sets at the same polls, but for what `tests.property.run` excuses.",
}
