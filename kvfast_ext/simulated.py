"""A transfer engine that moves nothing: states set from an array, for tests and measurements.

Both backends take a `SimulatedAgent`. The ``cython`` backend reads its arrays in compiled code
without the GIL, so what is measured with it is kvfast's own overhead.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from . import states

_EXCEPTIONS: Final[dict[int, type[RuntimeError]]] = {
    code: type(name, (RuntimeError,), {}) for name, code in states.EXCEPTION_CODES.items()
}


def exception_for(code: int, binding: Any = None) -> Exception:
    """Return what NIXL's binding raises for a negative status.

    Parameters
    ----------
    code : int
        The status.
    binding : module, optional
        The binding whose classes to take; classes of the same names otherwise.
    """
    own = _EXCEPTIONS.get(code, _EXCEPTIONS[states.UNKNOWN])
    cls = getattr(binding, own.__name__, own)
    error = cls(f"NIXL_ERR_{states.name_of(code)}")
    return error if isinstance(error, Exception) else own(states.name_of(code))


class SimulatedAgent:
    """An agent whose handles are the ints 0 to n-1 and whose answers stand in arrays.

    Parameters
    ----------
    n : int
        How many handles there are.

    Attributes
    ----------
    states : ndarray of int32, shape (n,)
        Status code of each handle (`kvfast_ext.states`); all IN_PROG at first. Set at any time.
    release_codes : ndarray of int32, shape (n,)
        What a release answers: 0 is success, a negative status is a refusal.
    telemetry : ndarray of int64, shape (n, 4)
        xfer_us, post_us, bytes, descriptors of each handle.
    released : ndarray of int32, shape (n,)
        How often each handle was released with success.

    Raises
    ------
    TypeError, ValueError
        If `n` is not an int, or is negative.
    """

    def __init__(self, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f"n must be an int, not {n!r}")
        if n < 0:
            raise ValueError(f"n must be zero or more, not {n}")
        self._states = np.full(n, states.IN_PROG, np.int32)
        self._release_codes = np.zeros(n, np.int32)
        self._telemetry = np.ones((n, 4), np.int64)
        self._released = np.zeros(n, np.int32)

    # Properties without setters: compiled code holds pointers into these arrays.

    @property
    def states(self) -> npt.NDArray[np.int32]:
        return self._states

    @property
    def release_codes(self) -> npt.NDArray[np.int32]:
        return self._release_codes

    @property
    def telemetry(self) -> npt.NDArray[np.int64]:
        return self._telemetry

    @property
    def released(self) -> npt.NDArray[np.int32]:
        return self._released

    def status_code(self, handle: int) -> int:
        """Return a handle's status code."""
        return int(self._states[handle]) if handle < len(self._states) else states.INVALID_PARAM

    def telemetry_code(self, handle: int) -> tuple[int, tuple[int, int, int, int]]:
        """Return a status code, and xfer_us, post_us, bytes, descriptors."""
        if handle >= len(self._states):
            return states.INVALID_PARAM, (0, 0, 0, 0)
        xfer_us, post_us, n_bytes, descriptors = self._telemetry[handle].tolist()
        return states.SUCCESS, (xfer_us, post_us, n_bytes, descriptors)

    def release_code(self, handle: int) -> int:
        """Count a release; return what `release_codes` says."""
        code = int(self._release_codes[handle]) if handle < len(self._states) else states.INVALID_PARAM
        if code == states.SUCCESS:
            self._released[handle] += 1
        return code
