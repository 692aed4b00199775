"""The ``python`` backend: plain Python, no compiler, no native calls. The reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..agent_ops import PythonOps
from ..coded_ops import CodedOps
from ..contract import SweepResult
from ..releasing import release_each
from ..simulated import SimulatedAgent
from ..table import BaseTable
from .capsule import CAPSULE_TYPE, CapsuleAgent
from .store import PythonStore

__all__ = ["TransferTable", "bind", "pop_done_transfers", "try_release"]


class TransferTable(BaseTable):
    __doc__ = BaseTable.__doc__
    _store_type = PythonStore
    _ops_types = (PythonOps, CodedOps)


def bind(agent: Any) -> PythonOps | CodedOps:
    """Return ops that call the agent's own methods.

    Parameters
    ----------
    agent : object
        A ``nixl_agent``, its inner binding object, a wrapper around one, anything with
        ``check_xfer_state``, ``get_xfer_telemetry`` and ``release_xfer_handle``, a
        `SimulatedAgent`, or a ``kvfast.ops.v1`` capsule.

    Raises
    ------
    TypeError
        If it is none of these.
    """
    if isinstance(agent, SimulatedAgent):
        return CodedOps(agent, agent, "simulated", "a SimulatedAgent, asked by its methods")
    if isinstance(agent, CAPSULE_TYPE):
        engine = CapsuleAgent(agent)
        return CodedOps(agent, engine, "capsule", "a kvfast.ops.v1 capsule, called through ctypes")
    return PythonOps(agent, "the python backend calls the agent's own methods")


def pop_done_transfers(table: TransferTable) -> SweepResult:
    """Sweep a table once: ask for states, release what is done, report what has ended.

    Raises
    ------
    TypeError
        If `table` is not a table of this backend.
    ConcurrentSweepError
        If it is being swept already.
    """
    if not isinstance(table, TransferTable):
        raise TypeError(f"table must be a TransferTable of the python backend, not {table!r}")
    return table._sweep()


def try_release(ops: PythonOps | CodedOps, handles: Any) -> npt.NDArray[np.bool_]:
    """Release handles that may be released.

    Parameters
    ----------
    ops : Ops
        What `bind` returned.
    handles : sequence of handles, or array of uint64
        Handle objects and raw ids in any mix, or a typed array of raw ids.

    Returns
    -------
    ndarray of bool, shape (len(handles),)
        False where the caller must keep the handle: it is in flight, it is LOST (a table's
        quarantine is the place for it), or NIXL refused.

    Raises
    ------
    TypeError, ValueError
        If something is not a handle; nothing has been released then.
    DuplicateHandleError
        If a handle is named twice; nothing has been released then.
    """
    if not isinstance(ops, (PythonOps, CodedOps)):
        raise TypeError(f"ops must come from bind() of the python backend, not {ops!r}")
    return release_each(ops, handles)
