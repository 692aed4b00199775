"""A network that can be broken: decode and the ranks in namespaces of their own, with a wire between.

Needs root and ``ip``; delay and loss also need the kernel's ``netem``. What the machine does not
allow is said, not guessed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ENTER: Final = "KVFAST_SOAK_NETNS"
NETWORK_FAULTS: Final[dict[str, str]] = {
    "net-cut": "the wire between decode and the ranks is cut, and joined again",
    "net-loss": "a tenth of all packets get lost for a while",
    "net-delay": "all packets are late by 50 ms for a while",
}
_NETEM: Final = {"net-loss": ("loss", "10%"), "net-delay": ("delay", "50ms")}
_CLONE_NEWNET: Final = 0x40000000
_CLONE_NEWNS: Final = 0x00020000
_MS_REC_SLAVE: Final = 0x4000 | 1 << 19
_MNT_DETACH: Final = 2
_SUBNET: Final = "10.213.47"
_COMMAND_S: Final = 20


@dataclass(slots=True)
class Network:
    """Two namespaces and the wire between them; `close` removes all of it.

    Attributes
    ----------
    skipped : list of str
        What can't be done here, and why.
    faults : list of str
        Names of `NETWORK_FAULTS` that can be done.
    """

    skipped: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _made: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether the namespaces are there."""
        return bool(self.faults)

    def open(self) -> None:
        """Make them, or note why that is not possible."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            self.skipped.append("network faults: they need root and the command ip")
            return
        try:
            self._open()
        except (OSError, subprocess.SubprocessError) as error:
            self.skipped.append(f"network faults: no network namespaces here: {_reason(error)}")
            self.close()

    def env(self, side: str) -> dict[str, str]:
        """Return the environment of a process on one side, ``decode`` or ``ranks``."""
        if not self.usable:
            return {}
        return {ENTER: f"/run/netns/{_space(side)}", "UCX_NET_DEVICES": _wire(side)}

    def begin(self, fault: str) -> None:
        """Break the network."""
        if fault == "net-cut":
            _ip("-n", _space("ranks"), "link", "set", _wire("ranks"), "down")
        else:
            self._netem("add", *_NETEM[fault])

    def end(self, fault: str) -> None:
        """Mend it."""
        if fault == "net-cut":
            _ip("-n", _space("ranks"), "link", "set", _wire("ranks"), "up")
        else:
            self._netem("del")

    def close(self) -> None:
        """Remove the namespaces, and with them the wire."""
        self.faults.clear()
        while self._made:
            _ip("netns", "delete", self._made.pop())

    def _open(self) -> None:
        for side in ("decode", "ranks"):
            _ip("netns", "add", _space(side))
            self._made.append(_space(side))
            _ip("-n", _space(side), "link", "set", "lo", "up")
        peer = ["peer", "name", _wire("ranks"), "netns", _space("ranks")]
        _ip("-n", _space("decode"), "link", "add", _wire("decode"), "type", "veth", *peer)
        for number, side in enumerate(("decode", "ranks"), 1):
            _ip("-n", _space(side), "address", "add", f"{_SUBNET}.{number}/24", "dev", _wire(side))
            _ip("-n", _space(side), "link", "set", _wire(side), "up")
        self.faults.append("net-cut")
        try:
            self._netem("add", *_NETEM["net-delay"])
            self._netem("del")
        except (OSError, subprocess.SubprocessError) as error:
            self.skipped.append(f"packet loss and delay: no netem here: {_reason(error)}")
        else:
            self.faults += list(_NETEM)

    def _netem(self, verb: str, *what: str) -> None:
        kind = ("netem",) if what else ()
        device = ["dev", _wire("ranks"), "root"]
        _run("tc", "-n", _space("ranks"), "qdisc", verb, *device, *kind, *what)


def enter_namespace() -> None:
    """Go into the namespace that the supervisor has named, if any. Before NIXL is loaded."""
    path = os.environ.get(ENTER)
    if path is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(path).open() as space:
        _check(libc.setns(space.fileno(), _CLONE_NEWNET), f"setns to {path}")
    # UCX finds its devices in /sys, which still shows those of the other namespace.
    _check(libc.unshare(_CLONE_NEWNS), "unshare of mounts")
    _check(libc.mount(b"none", b"/", None, _MS_REC_SLAVE, None), "mount / as slave")
    _check(libc.umount2(b"/sys", _MNT_DETACH), "umount /sys")
    _check(libc.mount(b"soak", b"/sys", b"sysfs", 0, None), "mount /sys")


def _check(code: int, what: str) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), f"{what} refused: {os.strerror(ctypes.get_errno())}")


def _space(side: str) -> str:
    return f"kvfast-soak-{os.getpid()}-{side}"


def _wire(side: str) -> str:
    return f"kvs{os.getpid()}{side[0]}"  # at most 15 characters


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_S)


def _reason(error: Exception) -> str:
    said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return said[0] if said else repr(error)
