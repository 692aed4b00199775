"""The ``cython`` backend: compiled sweeps, native NIXL calls where they check out."""

from __future__ import annotations

from ..contract import SweepResult
from ..table import BaseTable
from ._native import CompiledOps, bind, try_release
from ._store import CompiledStore

__all__ = ["TransferTable", "bind", "pop_done_transfers", "try_release"]


class TransferTable(BaseTable):
    __doc__ = BaseTable.__doc__
    _store_type = CompiledStore
    _ops_types = (CompiledOps,)


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
        raise TypeError(f"table must be a TransferTable of the cython backend, not {table!r}")
    return table._sweep()
