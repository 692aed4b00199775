"""`kvfast doctor`: what is installed here, what an agent would get, and what to do about problems.

Whatever loads native code is done in a process of its own, a probe: a crash or a hang in there
becomes a finding.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvfast import __version__
from kvfast_ext import backend_name, cython_available, select_backend
from kvfast_ext.errors import BackendUnavailableError, KvfastError

from .agent import NIXL_INSTALL, open_agent
from .demo.errors import DemoError
from .demo.prefill import register
from .demo.process import Child, Message, converse

_NIXL_PACKAGES: Final = ("nixl-cu13", "nixl-cu12", "nixl-rocm")
_NO_SUCH: Final = "kvfast_none"  # makes UCX list what there is
_UCX_SETTINGS: Final = ("UCX_TLS", "UCX_NET_DEVICES")
_PROBE_BYTES: Final = 4096
_RDMA: Final = ("rc", "dc", "ud", "ib", "rc_verbs", "rc_mlx5", "ud_verbs", "ud_mlx5", "dc_mlx5", "srd")
_UCX_KEYWORDS: Final = {"all"}


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to know, and what to do about it. A problem makes kvfast unusable; a note doesn't."""

    what: str
    do: str
    problem: bool = True


@dataclass(slots=True)
class Findings:
    """Everything that the doctor found."""

    versions: dict[str, str | None] = field(default_factory=dict)
    extension: dict[str, Any] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)
    ucx: dict[str, Any] = field(default_factory=dict)
    advice: list[Advice] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not any(item.problem for item in self.advice)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {"ok": self.ok, **asdict(self)}


def examine(timeout_s: float = 60.0) -> Findings:
    """Look at everything; each probe has `timeout_s`."""
    findings = Findings(versions=_versions())
    _examine_extension(findings, timeout_s)
    _examine_agent(findings, timeout_s)
    if findings.versions["nixl"] is not None:
        _examine_ucx(findings, timeout_s)
    return findings


# ---- versions


def _versions() -> dict[str, str | None]:
    others = ("numpy", "torch", "nixl", *_NIXL_PACKAGES)
    own = {"python": platform.python_version(), "kvfast": __version__}
    return own | {name: _version(name) for name in others}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---- the compiled extension


def _examine_extension(findings: Findings, timeout_s: float) -> None:
    found = {"installed": cython_available(), "loads": False, "error": None}
    findings.extension = {**found, "KVFAST_BACKEND": os.environ.get("KVFAST_BACKEND") or None}
    if not found["installed"]:
        what = "the compiled backend is not installed: kvfast polls in Python, slower than a loop of your own"
        do = "get a C++17 compiler; in kvfast's source, KVFAST_BUILD_EXT=yes pip install --force-reinstall ."
        findings.advice.append(Advice(what, do, problem=False))
        return
    try:
        _probe("extension", timeout_s)
        findings.extension["loads"] = True
    except KvfastError as error:
        findings.extension["error"] = str(error)
        what = f"the compiled backend is installed but does not load: {error}"
        do = "reinstall kvfast with this Python, or set KVFAST_BACKEND=python to do without"
        findings.advice.append(Advice(what, do))


def _probe_extension() -> Message:
    return {"backend": backend_name(select_backend("cython"))}


# ---- a real agent


def _examine_agent(findings: Findings, timeout_s: float) -> None:
    try:
        findings.agent = _probe("agent", timeout_s)[0]
    except KvfastError as error:
        findings.agent = {"error": str(error)}
        findings.advice.append(Advice(str(error), _cure(findings, error)))
        return
    _judge_agent(findings)


def _cure(findings: Findings, error: KvfastError) -> str:
    if findings.versions["nixl"] is None:
        return NIXL_INSTALL
    if findings.extension["KVFAST_BACKEND"] not in (None, "auto", "cython", "python"):
        return "unset KVFAST_BACKEND, or give it one of these values"
    if isinstance(error, BackendUnavailableError):
        return "see the message, and what UCX has, above"
    if isinstance(error, DemoError):
        return "run it again with UCX_LOG_LEVEL=info and NIXL_LOG_LEVEL=INFO, and see where it stops"
    return "see the message"


def _judge_agent(findings: Findings) -> None:
    agent = findings.agent
    package = findings.versions.get(agent["nixl_package"].replace("_", "-"))
    if package != findings.versions["nixl"]:
        what = (
            f"nixl is {findings.versions['nixl']}, but the {agent['nixl_package']} that it loads is {package}"
        )
        findings.advice.append(Advice(what, "install both in the same version", problem=False))
    if not agent["bytes_arrived"]:
        what = f"a READ between two agents ended as {agent['state']}, and its bytes did not arrive"
        findings.advice.append(Advice(what, "check UCX_TLS and UCX_NET_DEVICES, above"))
    if agent["backend"] == "cython" and agent["ops"] != "nixl":
        what = f"states are read through Python, not natively: {agent['ops_reason']}"
        do = "it works, but slower; use a wheel of NIXL 0.10 or later, or report this with --json"
        findings.advice.append(Advice(what, do, problem=False))


def _probe_agent() -> Message:
    backend: Any = select_backend("auto")
    initiator: Any = open_agent("kvfast-doctor-1")
    target: Any = open_agent("kvfast-doctor-2")
    ops = backend.bind(initiator)
    table = backend.TransferTable(ops)
    before = ops.kind
    arrived, state = _read_once(backend, table, initiator, target)
    return {
        "backend": backend_name(backend),
        "nixl_package": type(initiator).__module__.partition(".")[0],
        "ops_at_bind": before,
        "ops": ops.kind,
        "ops_reason": ops.reason,
        "self_check_passed": ops.kind == "nixl" if before == "nixl" else None,
        "bytes_arrived": arrived,
        "state": state,
    }


def _read_once(backend: Any, table: Any, initiator: Any, target: Any) -> tuple[bool, str]:
    """READ some bytes from one agent by the other, in this process; sweep until that has ended."""
    source = np.arange(_PROBE_BYTES, dtype=np.uint32).view(np.uint8)
    memory = np.zeros_like(source)
    registered = [(target, register(target, source)), (initiator, register(initiator, memory))]
    peer = target.name
    initiator.add_remote_agent(target.get_agent_metadata())
    sides = [initiator.get_xfer_descs([(m.ctypes.data, m.nbytes, 0)], "DRAM") for m in (memory, source)]
    handle = initiator.initialize_xfer("READ", *sides, peer, b"doctor:1")
    initiator.transfer(handle)
    table.add("doctor", handle, peer=peer)
    state = "DONE"
    while "doctor" in table:
        for failure in backend.pop_done_transfers(table).failures:
            state = failure.status
        time.sleep(0.001)
    arrived = bool((memory == source).all())
    for agent, descriptors in registered:
        agent.deregister_memory(descriptors)
    return arrived, state


# ---- UCX


def _examine_ucx(findings: Findings, timeout_s: float) -> None:
    settings = {key: value for key, value in sorted(os.environ.items()) if key.startswith("UCX_")}
    findings.ucx = {"settings": settings, "version": None, "transports": [], "devices": [], "modules": []}
    try:
        answer, log = _probe(
            "ucx", timeout_s, dict.fromkeys(_UCX_SETTINGS, _NO_SUCH) | {"UCX_LOG_LEVEL": "info"}
        )
    except KvfastError as error:
        findings.ucx["error"] = str(error)
        return
    findings.ucx |= {"modules": answer["modules"], **parse_ucx_log(log)}
    findings.advice += judge_ucx(findings.ucx)


def parse_ucx_log(log: str) -> dict[str, Any]:
    """Return version, transports and devices from what UCX says when asked for some that do not exist."""
    version = re.search(r"UCX\s+INFO\s+Version (\S+)", log)
    transports = re.search(rf"transport '{_NO_SUCH}' is not available, please use one or more of: (.*)", log)
    devices = re.search(rf"device '{_NO_SUCH}' is not available, please use one or more of: (.*)", log)
    return {
        "version": version and version[1],
        "transports": re.findall(r"[\w^]+", transports[1]) if transports else [],
        "devices": re.findall(r"'([^']+)'\((\w+)\)", devices[1]) if devices else [],
    }


def judge_ucx(ucx: dict[str, Any]) -> list[Advice]:
    """Return what to say about transports and the settings that choose among them."""
    if not ucx["transports"]:
        return [Advice("UCX did not say which transports it has", "run ucx_info -d", problem=False)]
    advice = []
    asked = [t.lstrip("^\\") for t in ucx["settings"].get("UCX_TLS", "all").split(",")]
    unknown = [t for t in asked if t not in ucx["transports"] and t not in _UCX_KEYWORDS]
    if unknown:
        what = f"UCX_TLS names {', '.join(unknown)}, which is not available here"
        advice.append(Advice(what, f"choose among {', '.join(ucx['transports'])}", problem=False))
    if not set(_RDMA) & set(ucx["transports"]):
        what = "UCX has no RDMA transport here: transfers between machines go over TCP"
        do = "fine for tests; otherwise check that the RDMA devices, and libibverbs, are visible here"
        advice.append(Advice(what, do, problem=False))
    return advice


def _probe_ucx() -> Message:
    """Make an agent that UCX can't serve: UCX names what it has when asked for what it has not."""
    try:
        open_agent("kvfast-doctor-ucx")
    except BackendUnavailableError:
        if "nixl._api" not in sys.modules:
            raise  # not UCX's refusal, which is what this is about
    package = Path(str(sys.modules["nixl._api"].__file__)).parent
    return {"modules": _ucx_modules(package)}


def _ucx_modules(package: Path) -> list[str]:
    """Return the transport modules that come with NIXL's wheel (TCP and shared memory are built in)."""
    found = (package.parent / f"{package.name}.libs" / "ucx").glob("libuct_*.so*")
    return sorted({path.name.partition(".")[0].removeprefix("libuct_") for path in found})


# ---- probes

_PROBES: Final[dict[str, Callable[[], Message]]] = {
    "extension": _probe_extension,
    "agent": _probe_agent,
    "ucx": _probe_ucx,
}


def _probe(name: str, timeout_s: float, env: dict[str, str] | None = None) -> tuple[Message, str]:
    """Run a probe in a process of its own; return its answer and its log."""
    child = Child(f"the {name} probe", "kvfast.doctor", [name], env)
    try:
        return child.receive(timeout_s), child.log()
    finally:
        child.close()


def main(parent: str, name: str) -> None:
    """Be a probe."""
    with converse(int(parent)) as doctor:
        doctor.send(_PROBES[name]())


# ---- for people


def show(findings: Findings, console: Any) -> None:
    """Print the findings."""
    for title, rows in _sections(findings).items():
        console.print(f"[bold]{title}[/]")
        for name, value in rows.items():
            console.print(f"  {name:<20} {value}", markup=False, highlight=False, soft_wrap=True)
    for item in findings.advice:
        style, word = ("red", "problem") if item.problem else ("yellow", "note")
        console.print(f"[{style}]{word}[/]", end=" ")
        console.print(f"{item.what}\n  -> {item.do}", markup=False, highlight=False, soft_wrap=True)
    console.print("usable" if findings.ok else "there are problems", style="bold")


def _sections(findings: Findings) -> dict[str, dict[str, Any]]:
    ucx = {key: value for key, value in findings.ucx.items() if value}
    ucx["devices"] = " ".join(f"{device}({kind})" for device, kind in findings.ucx.get("devices", []))
    for key in ("transports", "modules"):
        ucx[key] = " ".join(findings.ucx.get(key, []))
    sections = {
        "versions": {name: version or "not installed" for name, version in findings.versions.items()},
        "compiled backend": findings.extension,
        "a real agent": findings.agent,
    }
    return sections | ({"UCX": ucx} if findings.ucx else {})


if __name__ == "__main__":
    main(*sys.argv[1:])
