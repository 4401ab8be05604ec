"""Numbers that depend on what other ranks computed: a script may print them, not go on by them.

`loss.item()` of a summed loss is such a number. Arithmetic gives others, and text shows the value
of this run. Whoever compares one, or makes a plain number of it, may go on by it: that is a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from primepar.preflight.capture.recorder import RankRecorder


class UnknownNumber:
    """A number of this run that another run may not have."""

    __slots__ = ("_recorder", "_value")

    def __init__(self, value: Any, recorder: RankRecorder) -> None:
        self._value, self._recorder = value, recorder

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """That of the value, for `isinstance`."""
        return type(self._value)

    def __repr__(self) -> str:
        return repr(self._value)

    def __str__(self) -> str:
        return str(self._value)

    def __format__(self, form: str) -> str:
        return format(self._value, form)


def _plain(value: Any) -> Any:
    return value._value if type(value) is UnknownNumber else value


def _arithmetic(name: str) -> Callable[..., Any]:
    def method(self: UnknownNumber, *others: Any) -> Any:
        function = getattr(type(self._value), name)
        value = function(self._value, *map(_plain, others))
        return value if value is NotImplemented else UnknownNumber(value, self._recorder)

    return method


def _decision(name: str) -> Callable[..., Any]:
    def method(self: UnknownNumber, *others: Any) -> Any:
        self._recorder.steered()
        return getattr(type(self._value), name)(self._value, *map(_plain, others))

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(UnknownNumber, f"__{_name}__", _arithmetic(f"__{_name}__"))
    setattr(UnknownNumber, f"__r{_name}__", _arithmetic(f"__r{_name}__"))
for _name in ("neg", "pos", "abs", "round"):
    setattr(UnknownNumber, f"__{_name}__", _arithmetic(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "float", "int", "index", "hash"):
    setattr(UnknownNumber, f"__{_name}__", _decision(f"__{_name}__"))


def watch_numbers(recorder: RankRecorder) -> None:
    """Let tensors give unknown numbers where their values depend on other ranks."""
    item, numpy, tolist = torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.tolist
    text: Callable[..., str] = torch.Tensor.__repr__

    def watched_item(self: torch.Tensor) -> Any:
        with recorder.reading_quietly() as read:
            value = item(self)
        return UnknownNumber(value, recorder) if read.unknown else value

    def watched_tolist(self: torch.Tensor) -> Any:
        return _each(tolist(self), recorder) if recorder.is_unknown(self) else tolist(self)

    def watched_numpy(self: torch.Tensor, **options: Any) -> Any:
        if recorder.is_unknown(self):
            recorder.steered()
        return numpy(self, **options)

    def watched_text(self: torch.Tensor, **options: Any) -> str:
        with recorder.reading_quietly():
            return text(self, **options)

    for name, function in (("item", watched_item), ("tolist", watched_tolist),
                           ("numpy", watched_numpy), ("__repr__", watched_text)):  # fmt: skip
        setattr(torch.Tensor, name, function)


def _each(value: Any, recorder: RankRecorder) -> Any:
    if isinstance(value, list):
        return [_each(part, recorder) for part in value]
    return UnknownNumber(value, recorder)
