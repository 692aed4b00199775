"""How the workers' agent is asked: natively where it is a NIXL agent, through its methods otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from kvfast_ext import backend_name, select_backend
from kvfast_ext.contract import Quarantine, SweepResult
from kvfast_ext.nixl_target import find_target

from .options import Options
from .tables import retry_at_next_sweep


class Box:
    """A handle of an agent that is no NIXL agent, as the table knows it.

    Doubles hand out what they like: strings, the same int twice. In a box each is a handle of its own.
    """

    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class Forwarder:
    """An agent for `bind` that passes boxed handles on to whatever agent it is given last.

    Methods are looked up at each call: doubles change theirs while handles are out.
    """

    def __init__(self) -> None:
        self.agent: Any = None

    def check_xfer_state(self, box: Box) -> Any:
        """Ask for the state of a handle. What is no word is a failure, as it is to vLLM."""
        state = self.agent.check_xfer_state(box.handle)
        return state if isinstance(state, str) else "ERR"

    def get_xfer_telemetry(self, box: Box) -> Any:
        """Ask for the telemetry of a handle."""
        return self.agent.get_xfer_telemetry(box.handle)

    def release_xfer_handle(self, box: Box) -> Any:
        """Release a handle."""
        return self.agent.release_xfer_handle(box.handle)


class AgentOps:
    """A backend, bound to the agent of one worker.

    Parameters
    ----------
    options : Options
        Which backend, which scan, how long a quarantine.
    locked : bool or None
        Whether the agent was made with a lock; None if somebody else made it. Without a lock, only
        "python" may poll: it holds the GIL.
    """

    def __init__(
        self, options: Options, locked: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.backend: Final[ModuleType] = select_backend("python" if locked is False else options.backend)
        self._options = options
        self._clock = clock
        self._forwarder: Final = Forwarder()
        self._agent: Any = None
        self._ops: Any = None

    @property
    def backend_name(self) -> str:
        """``"cython"`` or ``"python"``."""
        return backend_name(self.backend)

    @property
    def bound(self) -> Any:
        """The ops of the agent that was given last; None before."""
        return self._ops

    def use(self, agent: Any) -> None:
        """Ask this agent from now on."""
        if agent is self._agent:
            return
        target = find_target(agent).target
        native = target is not None and target.stock_methods
        if not native:
            self._forwarder.agent = agent
        if native or self._ops is None or self._ops.agent is not self._forwarder:
            self._ops = self.backend.bind(agent if native else self._forwarder)
        self._agent = agent

    def wrap(self, handle: Any) -> Any:
        """Return what a table is given for a handle."""
        return Box(handle) if self._ops.agent is self._forwarder else handle

    def make_table(self) -> Any:
        """Return an empty transfer table over the agent."""
        return self.backend.TransferTable(
            self._ops,
            scan=self._options.scan,
            quarantine=Quarantine(lost_s=self._options.lost_s),
            clock=self._clock,
        )

    def sweep(self, table: Any) -> SweepResult:
        """Sweep one table."""
        result: SweepResult = self.backend.pop_done_transfers(table)
        if result.retained:
            retry_at_next_sweep(table)
        return result

    def try_release(self, handle: Any) -> bool:
        """Release a handle unless its bytes may still land; tell whether it is released."""
        return bool(self.backend.try_release(self._ops, [self.wrap(handle)])[0])


def unwrap(handle: Any) -> Any:
    """Return the handle that vLLM knows."""
    return handle.handle if type(handle) is Box else handle
