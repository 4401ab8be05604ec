"""Numbers that another rank, or another run, may have otherwise: they carry a mark.

`loss.item()` is such a number. It is a `float`, and everything that takes one takes it: torch,
NumPy, json, pickle, `format`. Arithmetic keeps the mark. For example

    loss = model(x).mean().item()       # MarkedFloat(0.31), of this rank's data
    smooth = 0.9 * smooth + 0.1 * loss  # marked as well
    if smooth < best:                   # a decision: recorded, and taken the other way in a fork

A comparison gives a `bool`, which carries nothing. So it is here that the script decides, and here
that a fork of the recording goes the other way (`RankRecorder.decide`). What a decision is about is
normalised, so that `a < b`, `b > a` and `not a >= b` are one question with one answer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from primepar.preflight.capture.recorder import Mark, RankRecorder, ValueQuestion

_recorder: RankRecorder
_exist = False
"""Whether there is a marked number yet: before, no argument has to be looked at."""


class MarkedFloat(float):
    """A float with a mark."""

    mark: Mark


class MarkedInt(int):
    """An int with a mark."""

    mark: Mark


class MarkedText(str):
    """A text as json writes one, with the mark of the numbers in it: json gives it back to them."""

    mark: Mark


class MarkedArray(np.ndarray[Any, Any]):
    """An array with a mark, which its parts, copies and results keep."""

    mark: Mark | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.mark = getattr(source, "mark", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return keeping(getattr(ufunc, method), str(ufunc))(*inputs, **named)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        inner = getattr(function, "_implementation", None) or function
        return keeping(inner, function.__name__)(*args, **kwargs)

    def __getitem__(self, place: Any) -> Any:
        return marked(plain(self)[place], self.mark)

    def __bool__(self) -> bool:
        return bool(marked(bool(plain(self)), self.mark))

    def item(self, *place: Any) -> Any:
        """One element, with the mark."""
        return marked(plain(self).item(*place), self.mark)

    def tolist(self) -> Any:
        """The elements, each with the mark."""
        return marked(plain(self).tolist(), self.mark)


def marked(value: Any, mark: Mark | None) -> Any:
    """A number, an array or a list of numbers with a mark; a truth value is decided now."""
    if mark is None:
        return value
    if isinstance(value, bool | np.bool_):
        return _recorder.decide(mark, bool(value))
    if type(value) in (list, tuple):
        return type(value)([marked(part, mark) for part in value])
    if type(value) is dict:
        return {key: marked(part, mark) for key, part in value.items()}
    number: Any
    if isinstance(value, np.ndarray):
        number = value.view(MarkedArray)
    elif isinstance(value, float | np.floating):
        number = MarkedFloat(_number(value))
    elif isinstance(value, int | np.integer):
        number = MarkedInt(_number(value))
    elif isinstance(value, str) and value[:1] in ("{", "["):
        number = MarkedText(value)
    else:
        return value
    number.mark = mark
    global _exist
    _exist = True
    return number


_MARKED = (MarkedFloat, MarkedInt, MarkedArray, MarkedText)
_SIZES = {
    "__getitem__",
    "empty",
    "expand",
    "full",
    "narrow",
    "ones",
    "rand",
    "randn",
    "repeat",
    "zeros",
}
"""Functions of torch that make a tensor of a size, or of a slice, that they are given."""


def plain(value: Any) -> Any:
    """A value without its mark."""
    if isinstance(value, MarkedArray):
        return value.view(np.ndarray)
    if type(value) in (list, tuple):
        return type(value)([plain(part) for part in value])
    return str(value) if isinstance(value, MarkedText) else _number(value)


def marks_in(values: Any, depth: int = 3) -> Iterator[Mark]:
    """The marks of arguments, and of the lists, slices and dictionaries among them."""
    for value in values:
        if isinstance(value, _MARKED):
            if value.mark is not None:
                yield value.mark
        elif depth and isinstance(value, list | tuple):
            yield from marks_in(value, depth - 1)
        elif depth and isinstance(value, dict):
            yield from marks_in(value.values(), depth - 1)
        elif isinstance(value, slice):
            yield from marks_in((value.start, value.stop, value.step), 0)


def keeping(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of numbers whose result keeps the marks of its arguments."""

    def kept(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if not any(True for _ in marks_in(given)):
            return function(*args, **kwargs)
        marks = [mark for one in given for mark in _marks_of(one)]
        values = {key: plain(value) for key, value in kwargs.items()}
        mark = _recorder.mixed(name, marks)
        if name == "isfinite":
            _recorder.usually.add(mark.lineage)
        try:
            return marked(function(*map(plain, args), **values), mark)
        except (ArithmeticError, ValueError):
            if mark.unknown:  # a logarithm of a number that is zero only here
                return marked(math.nan, mark)
            raise

    return kept


def _arithmetic(name: str) -> None:
    """Define `__add__` and `__radd__`, or a function of one number."""
    function = getattr(operator, name)

    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            return NotImplemented
        return keeping(function, name)(self, *others)

    def reflected(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return keeping(function, name)(other, self)

    for kind in (MarkedFloat, MarkedInt):
        setattr(kind, f"__{name}__", method)
        if hasattr(float, f"__r{name}__"):
            setattr(kind, f"__r{name}__", reflected)


def _number(value: Any) -> Any:
    """A number as float or int compute with it, without a comparison that is recorded."""
    if isinstance(value, MarkedFloat):
        return float.__pos__(value)
    return int.__pos__(value) if isinstance(value, MarkedInt) else value


def _marks_of(operand: Any) -> Iterator[Mark]:
    """The marks of an operand; a number without one is named by itself."""
    return iter([Mark(hash(operand))]) if type(operand) in (int, float) else marks_in([operand])


_QUESTIONS = {"lt": ("lt", False, False), "ge": ("lt", False, True), "gt": ("lt", True, False),
              "le": ("lt", True, True), "eq": ("eq", False, False),
              "ne": ("eq", False, True)}  # fmt: skip
"""Comparison of two marked numbers -> the question, with its sides exchanged, and negated."""


def _comparison(name: str) -> None:
    question, exchanged, negated = _QUESTIONS[name]
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        outcome = function(_number(self), _number(other))
        if not isinstance(other, _MARKED):
            asked = ValueQuestion(self.mark, name, float(other), float(_number(self)))
            return _recorder.decide(self.mark, outcome, question=asked)
        sides = [self.mark, other.mark]
        mark = _recorder.mixed(question, sides[::-1] if exchanged else sides)
        return _recorder.decide(mark, outcome, negated)

    for kind in (MarkedFloat, MarkedInt):
        setattr(kind, f"__{name}__", method)


def _truth(self: Any) -> bool:
    return bool(self != 0)


def _same(self: Any, *_: Any) -> Any:
    return self


def remarked(number: Any, lineage: int, unknown: bool) -> Any:
    """A number that was pickled, with its mark."""
    return marked(number, Mark(lineage, unknown))


def _pickled(self: Any, *_: Any) -> Any:
    return remarked, (_number(self), *self.mark)


def _plain_float(self: Any) -> float:
    _recorder.lose()
    return float(_number(self))


def _plain_int(self: Any) -> int:
    _recorder.lose()
    return int(_number(self))


def _rounded(self: Any, *digits: Any) -> Any:
    return keeping(round, "round")(self, *digits)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs"):
    _arithmetic(_name)
for _name in _QUESTIONS:
    _comparison(_name)
for _kind, _base in ((MarkedFloat, float), (MarkedInt, int)):
    _members: dict[str, Any] = {
        "__bool__": _truth, "__hash__": _base.__hash__, "__copy__": _same, "__deepcopy__": _same,
"item": _same, "__reduce_ex__": _pickled, "__round__": _rounded,
        "__array_ufunc__": MarkedArray.__array_ufunc__,
        "__float__": _plain_float, "__int__": _plain_int, "__trunc__": _plain_int,
    }  # fmt: skip
    for _name, _member in _members.items():
        setattr(_kind, _name, _member)


class MarkedArguments(TorchFunctionMode):
    """Lets tensors depend on the marked numbers that they are computed from."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and note the marks of its arguments in what it makes."""
        kwargs = kwargs or {}
        marks = list(marks_in((*args, *kwargs.values()), 2)) if _exist else []
        if not marks:
            return func(*args, **kwargs)
        values = [plain(value) for value in args]
        result = func(*values, **{key: plain(value) for key, value in kwargs.items()})
        name = getattr(func, "__name__", "")
        changes = name.endswith("_") and args and isinstance(args[0], torch.Tensor)
        for tensor in (args[0] if changes else None, result):
            if isinstance(tensor, torch.Tensor):
                _recorder.depends(tensor, _recorder.mixed(name, marks))
                break
        if isinstance(result, torch.Tensor) and name in _SIZES:
            _note_length(result, args, _recorder.mixed(name, marks))
        return result


def _note_length(tensor: torch.Tensor, args: Any, mark: Mark) -> None:
    """Note that a size which is given as a marked number, or by a slice, depends on it."""
    given = [one for part in args for one in (part if isinstance(part, list | tuple) else [part])]
    slices = [one for one in given if isinstance(one, slice) and any(marks_in([one]))]
    ends = [end for one in slices for end in (one.start, one.stop)]
    lengths = [plain(one) for one in [*given, *ends] if isinstance(one, MarkedInt)]
    named = [length for length in lengths if length in tensor.shape]
    if named or slices:
        _recorder.buffers.sized(tensor, named[0] if named else len(tensor), mark)


def watch_numbers(recorder: RankRecorder) -> MarkedArguments:
    """Let tensors give marked numbers; return the mode in which they take them."""
    global _recorder
    _recorder = recorder
    tensors: Any = torch.Tensor
    item, numpy, tolist, truth = tensors.item, tensors.numpy, tensors.tolist, tensors.__bool__
    text: Callable[..., str] = tensors.__repr__

    def read(tensor: torch.Tensor, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        mark = recorder.mark(tensor)
        with recorder.reading_quietly():
            value = function(tensor, *args, **named)
        return marked(value, mark)

    def watched_text(self: torch.Tensor, **options: Any) -> str:
        with recorder.reading_quietly():
            return text(self, **options)

    torch.serialization.add_safe_globals([remarked])
    tensors.item = lambda self: read(self, item)
    tensors.tolist = lambda self: read(self, tolist)
    tensors.numpy = lambda self, **options: read(self, numpy, **options)
    tensors.__bool__ = lambda self: read(self, truth)
    tensors.__repr__ = watched_text
    return MarkedArguments()
