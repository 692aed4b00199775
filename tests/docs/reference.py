"""Write docs/reference.md from the docstrings: ``python -m tests.docs.reference``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Final

import kvfast
import kvfast.stats
from kvfast import benchgate, notifs, results, testing
from kvfast.rendezvous import PushMatch
from kvfast_ext import contract

BACKEND: Final = kvfast.select_backend("python")  # the reference; the other one has the same names
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reference.md"

PARTS: Final[dict[str, list[Any]]] = {
    "Making an agent": [kvfast.open_agent, kvfast.Agent],
    "Receiving": [kvfast.Receiver, results.ReceiveResults, results.Closed],
    "Sending": [kvfast.Sender, results.SendResults, kvfast.PushRendezvous, PushMatch],
    "Peers": [kvfast.PeerGuard],
    "Notifications": [
        notifs.NotifReader,
        notifs.parse,
        notifs.consumed,
        notifs.heartbeat,
        notifs.Consumed,
        notifs.Heartbeat,
        notifs.BadNotif,
    ],
    "Numbers": [kvfast.stats.Stats, kvfast.stats.PrometheusExporter],
    "Quarantine and backends": [kvfast.Quarantine, kvfast.select_backend],
    "The backend's own names": [
        *(getattr(BACKEND, name) for name in contract.BACKEND_EXPORTS),
        contract.SweepResult,
        contract.Transfers,
        kvfast.HandleFailure,
    ],
    "For tests": [getattr(testing, name) for name in testing.__all__],
    "Floors of benchmarks": [
        benchgate.load,
        benchgate.read_results,
        benchgate.judge_all,
        benchgate.GateBook,
        benchgate.Gate,
        benchgate.Verdict,
        benchgate.GateFileError,
    ],
    "Errors": [
        kvfast.KvfastError,
        kvfast.BackendUnavailableError,
        kvfast.UnknownRequestError,
        kvfast.DuplicateRequestError,
        kvfast.DuplicateHandleError,
        kvfast.WrongThreadError,
        kvfast.ConcurrentSweepError,
        kvfast.ClosedError,
    ],
}

_HEAD: Final = """\
# Reference

<!-- Made from the docstrings by `python -m tests.docs.reference`; a test compares. -->

Names are imported from `kvfast` unless a module is shown. `backend` is what
`select_backend()` returns; both backends have the same names, and the `python` one's are shown.
"""


def rendered() -> str:
    """Return the document's text."""
    parts = [_HEAD]
    for title, things in PARTS.items():
        parts.append(f"\n## {title}\n")
        parts += [_thing(thing) for thing in things]
    return "".join(parts)


def _thing(thing: Any) -> str:
    where = "" if hasattr(kvfast, thing.__name__) else f"{_module_of(thing)}."
    text = f"\n### {where}{thing.__name__}\n\n{_fenced(_signature(thing), _doc(thing))}"
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        text += "".join(_member(name, member) for name, member in _members(thing).items())
    return text


def _module_of(thing: Any) -> str:
    if thing.__module__ == BACKEND.__name__:
        return "backend"
    return testing.__name__ if hasattr(testing, thing.__name__) else str(thing.__module__)


def _members(cls: type) -> dict[str, Any]:
    """Return what is defined by a class, and then by its bases within kvfast."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("kvfast", "kvfast_ext"):
            found = {**found, **{name: member for name, member in vars(base).items() if name not in found}}
    return found


def _member(name: str, member: Any) -> str:
    function = member.fget if isinstance(member, property) else member
    if name.startswith("_") or not inspect.isfunction(function):
        return ""
    signature = name if isinstance(member, property) else _signature(function)
    return f"\n#### {name}\n\n{_fenced(signature, _doc(function))}"


def _signature(thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"{thing.__name__}({', '.join(base.__name__ for base in thing.__bases__)})"
    if thing is kvfast.Agent:
        return "Agent"  # a protocol is never called
    parameters = inspect.signature(thing)
    shown = [
        p.replace(annotation=inspect.Parameter.empty, default=_plain(p.default))
        for p in parameters.parameters.values()
        if p.name != "self"
    ]
    return f"{thing.__name__}{parameters.replace(parameters=shown, return_annotation=parameters.empty)}"


class _Name:
    """A default that is shown by its name: a function's repr has an address."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _plain(default: Any) -> Any:
    module = getattr(default, "__module__", None)
    return (
        _Name(f"{module}.{default.__name__}") if callable(default) and inspect.isroutine(default) else default
    )


def _doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _fenced(signature: str, doc: str) -> str:
    return f"```text\n{signature}\n\n{doc}\n```\n"


if __name__ == "__main__":
    DOCUMENT.write_text(rendered())
