"""An agent whose every answer is scripted, and which notices when a handle is misused.

It stands in for a ``nixl_agent`` in tests of anything that polls transfers: nothing moves, and a
handle is in state ``"PROC"`` until the script says otherwise. What NIXL would let pass and pay for
with corrupted memory is a *violation* here:

* a handle is released in flight: it was posted, and no check has said since that it left ``"PROC"``;
* a handle is released, asked or posted after its release;
* a handle object is dropped in flight, so that its finaliser releases it;
* a peer is removed while a transfer to it is in flight.

A violation is written down and answered as NIXL would answer. It is raised by `assert_clean`, and at
the end of a ``with`` block, where no error handling of the code under test can swallow it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from .errors import nixlInvalidParamError, nixlNotPostedError, nixlRepostActiveError
from .script import IN_FLIGHT, Life, Script, State, answer, checked_states, is_exception, telemetry_like

Handle = Any  # an int or a ScriptedHandle


class ScriptedHandle:
    """A handle object like NIXL's: it releases itself when it is dropped."""

    __slots__ = ("__weakref__", "_agent", "_handle", "_released")

    def __init__(self, agent: ScriptedAgent, value: int) -> None:
        self._handle = value
        self._agent = agent
        self._released = False

    def __repr__(self) -> str:
        return f"ScriptedHandle({self._handle}, released={self._released})"

    def release(self) -> None:
        """Release the handle unless that is done; raises what the script says."""
        if not self._released:
            self._agent._release(self._handle, "released")
            self._released = True

    def __del__(self) -> None:
        if not self._released:
            self._agent._dropped(self._handle)


class ScriptedAgent:
    """A scripted stand-in for a ``nixl_agent``.

    A script is written by handle id, before or after the handle is made, and counts from then on.
    All methods may be called from any thread.

    Parameters
    ----------
    name : str
        The agent's name.
    handle_objects : bool
        Give out `ScriptedHandle` objects, which release themselves when they are dropped, instead
        of plain ints.

    Attributes
    ----------
    posted, released : list of int
        Handle ids in the order of the calls that succeeded. A finaliser's release counts.
    sent : list of (str, bytes)
        Notifications that went out: peer and message.
    removed : list of str
        Peers in the order of their removal.
    checks : int
        How many states were asked for.
    violations : list of str
        What must not have happened, a sentence each.

    Examples
    --------
    >>> with ScriptedAgent() as agent:
    ...     handle = agent.prepare(101)
    ...     agent.transfer(handle)
    ...     agent.set_states({101: "DONE"})
    ...     agent.check_xfer_state(handle)
    ...     agent.release_xfer_handle(handle)
    'PROC'
    'DONE'
    """

    def __init__(self, name: str = "scripted", *, handle_objects: bool = False) -> None:
        self.name = name
        self.handle_objects = handle_objects
        self.posted: list[int] = []
        self.released: list[int] = []
        self.sent: list[tuple[str, bytes]] = []
        self.removed: list[str] = []
        self.checks = 0
        self.violations: list[str] = []
        self._scripts: dict[int, Script] = {}
        self._lives: dict[int, Life] = {}
        self._deaf: dict[str, BaseException] = {}
        self._arrived: dict[str, list[bytes]] = {}
        self._next_id = 1
        # Reentrant: a finaliser may run anywhere, here too.
        self._lock = threading.RLock()

    def __enter__(self) -> ScriptedAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.assert_clean()

    # ---- the script

    def set_state(self, handle: Handle, *states: State) -> None:
        """Let the next checks of a handle say these states, one each; the last one stays.

        Parameters
        ----------
        handle : int or ScriptedHandle
            The handle, which need not be made yet.
        *states : str or exception
            ``"DONE"``, ``"PROC"`` and ``"ERR"`` are returned; ``"NOT_FOUND"``, ``"DISCONNECT"``,
            ``"BACKEND"`` and ``"BOOM"`` raise as NIXL does; an exception is raised as it is.

        Raises
        ------
        ValueError
            If there is no state, or one is none of these.
        """
        queue = checked_states(states)
        with self._lock:
            self._script(handle).states = queue

    def set_states(self, states: Mapping[int, State]) -> None:
        """Set one state for each of several handles; see `set_state`."""
        for handle, state in states.items():
            self.set_state(handle, state)

    def refuse_release(self, *handles: Handle, error: BaseException | None = None) -> None:
        """Let releases of these handles raise from now on (``nixlBackendError`` would be usual)."""
        for script in self._scripts_of(handles):
            script.release_error = error or RuntimeError("release refused")

    def allow_release(self, *handles: Handle) -> None:
        """Let releases of these handles succeed from now on."""
        for script in self._scripts_of(handles):
            script.release_error = None

    def refuse_transfer(self, *handles: Handle, error: BaseException | None = None) -> None:
        """Let `transfer` raise for these handles from now on: they are never posted."""
        for script in self._scripts_of(handles):
            script.transfer_error = error or RuntimeError("transfer refused")

    def set_telemetry(
        self, *handles: Handle, xfer_us: int = 1, post_us: int = 1, n_bytes: int = 1, descriptors: int = 1
    ) -> None:
        """Set the telemetry of these handles."""
        for script in self._scripts_of(handles):
            script.telemetry = telemetry_like(xfer_us, post_us, n_bytes, descriptors)

    def refuse_telemetry(self, *handles: Handle, error: BaseException | None = None) -> None:
        """Let telemetry of these handles raise from now on."""
        for script in self._scripts_of(handles):
            script.telemetry = error or RuntimeError("no telemetry")

    def omit_telemetry(self, *handles: Handle) -> None:
        """Let telemetry of these handles be None from now on."""
        for script in self._scripts_of(handles):
            script.telemetry = None

    def refuse_notifs(self, *peers: str, error: BaseException | None = None) -> None:
        """Let `send_notif` to these peers raise from now on."""
        with self._lock:
            self._deaf.update(dict.fromkeys(peers, error or RuntimeError("notification refused")))

    def allow_notifs(self, *peers: str) -> None:
        """Let `send_notif` to these peers succeed from now on."""
        with self._lock:
            for peer in peers:
                self._deaf.pop(peer, None)

    def deliver_notif(self, peer: str, message: bytes) -> None:
        """Let a message of a peer arrive; the next `get_new_notifs` gives it."""
        with self._lock:
            self._arrived.setdefault(peer, []).append(message)

    # ---- the methods of a nixl_agent

    def prepare(
        self, handle: int | None = None, *, peer: str | None = None, notif_msg: bytes = b""
    ) -> Handle:
        """Make a handle, not posted yet, under the given id or the next free one.

        Raises
        ------
        ValueError
            If a handle with this id is not released yet. A released one's id may be used again, as
            NIXL does; what its script said is forgotten at its release.
        """
        with self._lock:
            key = self._free_id() if handle is None else handle
            if key in self._lives and not self._lives[key].released:
                raise ValueError(f"handle {key} is in use")
            self._lives[key] = Life(peer, notif_msg)
        return ScriptedHandle(self, key) if self.handle_objects else key

    def initialize_xfer(
        self,
        operation: str,  # noqa: ARG002 - nothing moves
        local_descs: Any,  # noqa: ARG002
        remote_descs: Any,  # noqa: ARG002
        remote_agent: str,
        notif_msg: bytes = b"",
        backends: Iterable[str] = (),  # noqa: ARG002
    ) -> Handle:
        """Make a handle under the next free id, as NIXL's method of that name does."""
        return self.prepare(peer=remote_agent, notif_msg=notif_msg)

    def transfer(self, handle: Handle, notif_msg: bytes = b"") -> str:
        """Post a handle; from now on it is in flight, whatever its state, until a check says otherwise."""
        with self._lock:
            key = _id_of(handle)
            life = self._use(key, "posted")
            if life.may_be_in_flight:
                self.violations.append(f"handle {key} was posted in flight")
                raise nixlRepostActiveError(f"handle {key}")
            error = self._script(key).transfer_error
            if error is not None:
                raise error
            life.posted, life.seen, life.notif = True, None, notif_msg or life.notif
            self.posted.append(key)
            return IN_FLIGHT

    def check_xfer_state(self, handle: Handle) -> str:
        """Return or raise what the script says; a first DONE sends the transfer's notification."""
        with self._lock:
            key = _id_of(handle)
            life = self._use(key, "asked for its state")
            self.checks += 1
            if self._script(key).is_refused and not life.posted:
                raise nixlNotPostedError(f"handle {key}")
            life.seen = self._script(key).next_state()
            if life.seen == "DONE" and life.notif and life.peer is not None:
                message, life.notif = life.notif, b""
                self.sent.append((life.peer, message))
            return answer(life.seen, key)

    def get_xfer_telemetry(self, handle: Handle) -> Any:
        """Return or raise what the script says: by default one microsecond and one byte of everything."""
        with self._lock:
            key = _id_of(handle)
            self._use(key, "asked for telemetry")
            value = self._script(key).telemetry
            if is_exception(value):
                raise value
            return value

    def release_xfer_handle(self, handle: Handle) -> None:
        """Release a handle, or raise what the script says."""
        if isinstance(handle, ScriptedHandle):
            if handle._released:
                self._release(handle._handle, "released")
            handle.release()
        else:
            self._release(handle, "released")

    def send_notif(
        self,
        remote_agent_name: str,
        notif_msg: bytes,
        backend: str | None = None,  # noqa: ARG002
    ) -> None:
        """Send a message, or raise what the script says."""
        with self._lock:
            error = self._deaf.get(remote_agent_name)
            if error is not None:
                raise error
            self.sent.append((remote_agent_name, notif_msg))

    def get_new_notifs(
        self,
        backends: Iterable[str] = (),  # noqa: ARG002
    ) -> dict[str, list[bytes]]:
        """Return the messages that arrived since the last call."""
        with self._lock:
            arrived, self._arrived = self._arrived, {}
            return arrived

    def remove_remote_agent(self, agent: str) -> None:
        """Remove a peer. Transfers to it that are in flight become LOST, as in NIXL."""
        with self._lock:
            self.removed.append(agent)
            for key in sorted(self.in_flight):
                if self._lives[key].peer == agent:
                    self.violations.append(f"peer {agent} was removed with handle {key} in flight")
                    self._script(key).states = checked_states(["NOT_FOUND"])

    # ---- what came of it

    @property
    def in_flight(self) -> set[int]:
        """Ids of handles that were posted and that no check has seen out of ``"PROC"``."""
        with self._lock:
            return {key for key, life in self._lives.items() if life.may_be_in_flight and not life.released}

    @property
    def unreleased(self) -> set[int]:
        """Ids of handles that were made and not released."""
        with self._lock:
            return {key for key, life in self._lives.items() if not life.released}

    def next_answer(self, handle: Handle) -> State:
        """Return what the next check of a handle will say."""
        with self._lock:
            return self._script(handle).state

    def last_answer(self, handle: Handle) -> State | None:
        """Return what the last check of a handle said; None if there was none since it was posted."""
        with self._lock:
            return self._lives[_id_of(handle)].seen

    def assert_clean(self) -> None:
        """Raise AssertionError if there was any violation."""
        if self.violations:
            raise AssertionError("; ".join(self.violations))

    def assert_drained(self) -> None:
        """Raise AssertionError if there was any violation, or if a handle is not released."""
        self.assert_clean()
        left = sorted(self.unreleased)
        if left:
            raise AssertionError(f"handles were never released: {left}")

    # ---- inside

    def _script(self, handle: Handle) -> Script:
        return self._scripts.setdefault(_id_of(handle), Script())

    def _scripts_of(self, handles: Iterable[Handle]) -> list[Script]:
        with self._lock:
            return [self._script(handle) for handle in handles]

    def _free_id(self) -> int:
        while self._next_id in self._lives:
            self._next_id += 1
        return self._next_id

    def _use(self, key: int, how: str) -> Life:
        life = self._lives.get(key)
        if life is None or life.released:
            if life is not None:
                self.violations.append(f"handle {key} was {how} after its release")
            raise nixlInvalidParamError(f"handle {key}")
        return life

    def _release(self, key: int, how: str) -> None:
        with self._lock:
            life = self._use(key, how)
            if life.may_be_in_flight:
                self.violations.append(f"handle {key} was {how} in flight")
            error = self._script(key).release_error
            if error is not None:
                raise error
            life.released = True
            self.released.append(key)
            self._scripts.pop(key)

    def _dropped(self, key: int) -> None:
        # As NIXL does: a refusal leaves the handle to the agent. `assert_drained` tells of such a leak.
        with contextlib.suppress(Exception):
            self._release(key, "dropped")


def _id_of(handle: Handle) -> int:
    return handle._handle if isinstance(handle, ScriptedHandle) else int(handle)
