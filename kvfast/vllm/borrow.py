"""How vLLM's own functions are run with one thing replaced, instead of being written again.

All means are contained in one call: nothing in vLLM's modules changes, so its other connectors
and other threads never see it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def with_names(function: Any, **names: Any) -> Callable[..., Any]:
    """Return a copy of a function that finds these global names instead of its module's.

    The module's other names are as they are now. ``super()`` works as in the original.
    """
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class StandIn:
    """A ``self`` for one call: the real object, but for the attributes given here.

    Whatever is set on it is set on the real object.
    """

    def __init__(self, real: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_kvfast_real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_kvfast_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_kvfast_real"], name, value)


def after(cls: type, worker: Any) -> Any:
    """Return what ``super()`` of `cls` finds for a worker, as a class: methods take any ``self``."""
    mro = type(worker).__mro__
    return _Methods(mro[mro.index(cls) + 1 :])


class _Methods:
    def __init__(self, classes: tuple[type, ...]) -> None:
        self._classes = classes

    def __getattr__(self, name: str) -> Any:
        for cls in self._classes:
            if name in vars(cls):
                return vars(cls)[name]
        raise AttributeError(name)
