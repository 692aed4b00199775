"""The "python" ops: an agent is asked through its own methods, one handle at a time.

Three kinds of objects come here: anything with ``check_xfer_state``, ``get_xfer_telemetry`` and
``release_xfer_handle`` (a ``nixl_agent``, a wrapper, a test double), and NIXL's inner binding
object, which has ``getXferStatus`` and its like and takes raw ids. A ``nixl_agent`` of NIXL 0.7 and
later can't be asked about a raw id, so its inner binding is asked instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from . import states
from .contract import Handle, Ops
from .handles import check_pointer, plain_key
from .nixl_target import AGENT_METHODS, BINDING_METHODS, NixlTarget, find_target

logger = logging.getLogger(__name__)

Calls = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]
Sample = tuple[int, int, int, int]
LARGEST: Final = 2**63 - 1


class PythonOps:
    """Read states through Python calls.

    Parameters
    ----------
    agent : object
        See the module's text.
    reason : str
        Why these ops and not native ones.

    Raises
    ------
    TypeError
        If `agent` lacks the methods.
    """

    kind = "python"

    def __init__(self, agent: Any, reason: str) -> None:
        self.agent = agent
        self.reason = reason
        self.target: NixlTarget | None = find_target(agent).target
        self.calls = _calls_of(agent)
        self._takes_ids = not _has_methods(agent, AGENT_METHODS)
        self._id_calls = self._calls_for_ids()
        self.telemetry_error: Exception | None = None
        self._interrupt: BaseException | None = None

    def __repr__(self) -> str:
        return f"<ops {self.kind}: {self.reason}>"

    def admit(self, handle: Handle) -> tuple[int, Handle]:
        """Return the id of a handle and the object to keep; refuse what NIXL would crash on."""
        key, kept = plain_key(handle)
        if self.target is not None:
            check_admissible(self.target, key, handle, kept)
        return key, kept

    def status(self, handle: Handle) -> tuple[int, Exception | None]:
        """Ask for the state of one handle: a status code and the exception, if any."""
        try:
            return self.judge(self._call(0, handle))
        except Exception as error:
            return states.code_of_exception(error), untraced(error)

    def judge(self, value: Any) -> tuple[int, Exception | None]:
        """Return the status code of what a check returned, and an error if that is no state."""
        code = states.code_of_value(value)
        if code == states.ERR_VALUE:
            return code, TypeError(f"a state check returned {value!r}, which is no state")
        return code, None

    def direct_check(self) -> Callable[[Any], Any] | None:
        """Return the agent's check method where it takes every handle that we keep, else None."""
        direct = not self._takes_ids and self._id_calls is self.calls
        return self.calls[0] if direct else None

    def telemetry_or_code(self, key: int) -> Sample | int:
        """Return the binding's telemetry of a raw id, or the status that it raises."""
        try:
            return _sample(self._id_calls[1](key))
        except Exception as error:
            return states.code_of_exception(error)

    def telemetry(self, handle: Handle) -> Sample | None:
        """Return xfer_us, post_us, bytes, descriptors of a DONE handle, or None."""
        try:
            value = self._call(1, handle)
            return None if value is None else _sample(value)
        except Exception as error:
            self.telemetry_error = untraced(error)
        except BaseException as interrupt:
            self.keep_interrupt(interrupt)
        return None

    def release(self, handle: Handle) -> Exception | None:
        """Release one handle; return the exception if that was refused."""
        try:
            self._call(2, handle)
            if self._takes_ids:
                mark_released(handle)
        except Exception as error:
            return untraced(error)
        except BaseException as interrupt:
            # Whether NIXL has freed it can't be known. Trying again could free it twice, so this
            # counts as released, for its finaliser too; at worst one small object leaks.
            mark_released(handle)
            self.keep_interrupt(interrupt)
        return None

    def keep_interrupt(self, interrupt: BaseException) -> None:
        """Keep an exception that is no error until what was seen so far is safe."""
        self._interrupt = interrupt

    def take_interrupt(self) -> BaseException | None:
        """Return, once, an exception that is no error and came out of telemetry or release."""
        interrupt, self._interrupt = self._interrupt, None
        return interrupt

    def _call(self, which: int, handle: Handle) -> Any:
        if self._takes_ids:
            return self.calls[which](getattr(handle, "_handle", handle))
        if type(handle) is int:
            return self._id_calls[which](handle)
        return self.calls[which](handle)

    def _calls_for_ids(self) -> Calls:
        if self.target is None or not self.target.stock_methods:
            return self.calls
        return _bound(self.target.inner, BINDING_METHODS)


def untraced(error: Exception) -> Exception:
    """Return an exception without its traceback, to be kept as data.

    The traceback holds the frames of the sweep, and they hold the exception: handles and the table
    would live until the cyclic collector runs, which engines switch off.
    """
    return error.with_traceback(None)


def raise_interrupt(ops: Ops) -> None:
    """Raise the exception that ops have kept, if there is one."""
    interrupt = ops.take_interrupt()
    try:
        if interrupt is not None:
            raise interrupt
    finally:
        del interrupt  # its traceback has this frame, and with it the table's


def mark_released(handle: Handle) -> None:
    """Tell a ``nixl_xfer_handle`` that it was released by id, or its finaliser does it again.

    Never raises: the release has happened, and whoever called must be able to take note of it.
    """
    if hasattr(handle, "_released"):
        try:
            handle._released = True
        except Exception:
            logger.exception("handle %r can't be marked as released: its finaliser may free it again", handle)


def check_admissible(target: NixlTarget, key: int, handle: Handle, kept: Handle) -> None:
    """Refuse a handle that is no transfer handle, is released, or is another agent's."""
    if kept is not None:
        if target.handle_type is not None and not isinstance(kept, target.handle_type):
            raise TypeError(f"a handle must be a nixl_xfer_handle or an int, not {handle!r}")
        if getattr(kept, "_released", False):
            raise ValueError(f"handle {handle!r} is released already")
        if getattr(kept, "_agent", target.inner) is not target.inner:
            raise ValueError(f"handle {handle!r} belongs to another agent")
    elif target.overriding and target.handle_type is not None:
        raise TypeError(
            f"{target.overriding} takes a handle object: raw id {handle!r} can't be asked about through it"
        )
    check_pointer(key, handle)


def _calls_of(agent: Any) -> Calls:
    for names in (AGENT_METHODS, BINDING_METHODS):
        if _has_methods(agent, names):
            return _bound(agent, names)
    missing = [name for name in AGENT_METHODS if not callable(getattr(agent, name, None))]
    raise TypeError(f"{agent!r} is not an agent: it has no {', '.join(missing)}")


def _bound(agent: Any, names: tuple[str, ...]) -> Calls:
    check, telemetry, release = (getattr(agent, name) for name in names)
    return check, telemetry, release


def _has_methods(agent: Any, names: tuple[str, ...]) -> bool:
    return all(callable(getattr(agent, name, None)) for name in names)


def _sample(value: Any) -> Sample:
    sample = (
        _microseconds(value.xferDuration),
        _microseconds(value.postDuration),
        int(value.totalBytes),
        int(value.descCount),
    )
    if min(sample) < 0 or max(sample) > LARGEST:
        raise ValueError(f"telemetry {sample} is out of range")
    return sample


def _microseconds(value: Any) -> int:
    # Bindings have given plain microseconds and timedeltas.
    seconds = getattr(value, "total_seconds", None)
    return round(seconds() * 1e6) if callable(seconds) else int(value)
