"""Runs the user's files so that what they compute with Python's own numbers keeps its marks.

`float(loss)` and `math.isnan(x)` are functions in C, which read a number and give a plain one. So
each call `f(x)` in a file of the user is run as `keeper(f)(x)`: for functions of numbers the keeper
returns one that keeps marks, for the clock and random numbers one that marks its result as this
rank's own, and for all others the function itself. Nothing is written: no line moves, and no
byte-code is left.
"""

from __future__ import annotations

import ast
import copy
import importlib.machinery
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.optim import lr_scheduler

from primepar.preflight.capture.marked_numbers import MarkedFloat, MarkedInt, keeping, marked, plain
from primepar.preflight.capture.recorder import Mark, RankRecorder
from primepar.preflight.capture.source_lines import is_users

_KEEPER = "__primepar_keeper__"
_CLOCKS = {
    id(getattr(time, name))
    for name in ("time", "perf_counter", "monotonic", "process_time", "time_ns", "monotonic_ns")
}
_HASHED_ALIKE = (
    int,
    float,
    *((str, bytes) if os.environ.get("PYTHONHASHSEED", "").isdigit() else ()),
)
"""What has one hash on all ranks."""
_MODULES = {math.__name__, statistics.__name__, "numpy"}


_SHAPE, _ORDER, _GUARD = "__primepar_shape__", "__primepar_order__", "__primepar_guard__"
_ITEM, _AMONG, _PLAIN = "__primepar_item__", "__primepar_among__", "__primepar_plain__"
_MOST_CHOICES = 16
"""Elements, of which one that a marked number names is chosen by a decision."""
_GO_THROUGH: tuple[Any, ...] = (list, tuple, iter, enumerate, zip, map, filter)
_GOES_THROUGH = {(str, "join"), (list, "extend"), (type, "fromkeys")}
"""Functions and methods that go through what they are given."""


def _given(name: str, *nodes: ast.expr) -> ast.Call:
    """The call of one of our functions in the place of an expression."""
    function = ast.copy_location(ast.Name(name, ast.Load()), nodes[0])
    return ast.copy_location(ast.Call(function, list(nodes), []), nodes[0])


class _Calls(ast.NodeTransformer):
    def visit_Try(self, node: ast.Try) -> ast.AST:
        """Its body is guarded by what its handlers take."""
        self.generic_visit(node)
        types = [copy.deepcopy(one.type) or ast.Name("BaseException", ast.Load())
                 for one in node.handlers]  # fmt: skip
        if types:
            empty = ast.arguments([], [], None, [], [], None, [])
            handled = ast.Lambda(empty, ast.Tuple(types, ast.Load()))
            guard = ast.Call(ast.Name(_GUARD, ast.Load()), [handled], [])
            body: list[ast.stmt] = [ast.With([ast.withitem(guard)], node.body)]
            node.body = [ast.fix_missing_locations(ast.copy_location(body[0], node))]
        return node

    def visit_For(self, node: Any) -> Any:
        """What is gone through, a set in its order."""
        self.generic_visit(node)
        node.iter = _given(_ORDER, node.iter)
        return node

    visit_comprehension = visit_For

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _given(_ORDER, node.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "shape" or not isinstance(node.ctx, ast.Load):
            return node
        return _given(_SHAPE, node.value)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        constant = isinstance(node.slice, ast.Slice | ast.Constant | ast.Tuple)
        if constant or not isinstance(node.ctx, ast.Load):
            return node
        return _given(_ITEM, node.value, node.slice)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Types stay as they are, also where they are kept as text."""
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """`number in numbers` compares it with each, also where a set would take its hash."""
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.In | ast.NotIn):
            return node
        among = _given(_AMONG, node.left, node.comparators[0])
        negated = isinstance(node.ops[0], ast.NotIn)
        return ast.copy_location(ast.UnaryOp(ast.Not(), among), node) if negated else among

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """A text of numbers has no mark."""
        self.generic_visit(node)
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        if text and isinstance(node.op, ast.Mod):
            node.right = _given(_PLAIN, node.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        keeper = ast.Name(_KEEPER, ast.Load())
        function = ast.Call(keeper, [node.func], [])
        return ast.copy_location(
            ast.Call(ast.copy_location(function, node.func), node.args, node.keywords), node
        )


def _compiled(data: bytes, path: str) -> CodeType:
    tree = _Calls().visit(ast.parse(data, path))
    code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    return code


def run_user_code(script: Path, recorder: RankRecorder) -> None:
    """Run a script as `__main__`, and the modules of the user that it imports."""
    import builtins

    keeper = _Keeper(recorder)
    vars(builtins)[_KEEPER] = keeper
    vars(builtins)[_SHAPE] = lambda value: keeper.size(value, value.shape)
    vars(builtins)[_ORDER] = keeper.ordered
    vars(builtins)[_GUARD] = recorder.guarded
    vars(builtins)[_ITEM], vars(builtins)[_AMONG], vars(builtins)[_PLAIN] = _chosen, _among, plain
    # It decides by `float(metrics)`, which in C has no mark.
    vars(lr_scheduler)["float"] = _of_numbers(float)
    sys.dont_write_bytecode = True
    loader: Any = importlib.machinery.SourceFileLoader
    original = loader.get_code

    def get_code(self: Any, name: str) -> Any:
        path = self.get_filename(name)
        return _compiled(self.get_data(path), path) if is_users(path) else original(self, name)

    loader.get_code = get_code
    main = ModuleType("__main__")
    main.__file__ = str(script)
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    exec(_compiled(script.read_bytes(), str(script)), vars(main))


def _of_numbers(function: Any) -> Callable[..., Any]:
    """A function of numbers that keeps marks; a tensor gives it what `item` or `numpy` give."""

    def number(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.item() if value.numel() == 1 else value.detach().numpy()

    kept = keeping(function, getattr(function, "__name__", ""))
    return lambda *args, **named: kept(*map(number, args), **named)


class _Keeper:
    """Returns what is called in the place of a function."""

    def __init__(self, recorder: RankRecorder) -> None:
        self.recorder = recorder
        self.ticks = self.sets = 0

    def __call__(self, function: Any) -> Any:
        if function is float or function is int:
            return _of_numbers(function)
        if function is range:
            return _counted
        if function is torch.device:
            return _device
        if function is hash:
            return self._hashed
        bound, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if type(bound) is set and name == "pop":
            return partial(self._popped, bound)
        if (type(bound), name) in _GOES_THROUGH or any(function is one for one in _GO_THROUGH):
            return lambda *args, **named: function(*map(self.ordered, args), **named)
        if function is len and self.recorder.buffers.has_lengths:
            return lambda value: self.size(value, len(value))
        if isinstance(bound, torch.Tensor) and name in ("size", "numel", "nelement"):
            whole = name != "size"
            return lambda *args, **named: self.size(bound, function(*args, **named), whole)
        if isinstance(bound, random.Random | np.random.RandomState | np.random.Generator):
            return partial(_drawn, bound, function)
        if id(function) in _CLOCKS:
            self.ticks += 1
            tick = Mark(hash(("clock", self.recorder.rank, self.ticks)))
            return lambda: marked(function(), tick)
        if function is json.dumps or function is json.loads:
            return keeping(function, name)
        module = getattr(function, "__module__", None) or ""
        if not isinstance(module, str) or (
            isinstance(function, type) and not issubclass(function, np.generic)
        ):
            return function
        if module in _MODULES or module.startswith("numpy."):
            return _of_numbers(function)
        return function

    def ordered(self, value: Any) -> Any:
        """What is gone through; a set may have another order: in a fork its first comes last.

        Not a set of numbers, which are their hashes; nor of strings where all are hashed alike.
        """
        if type(value) not in (set, frozenset) or len(value) < 2:
            return value
        if all(isinstance(one, _HASHED_ALIKE) for one in value):
            return value
        # Objects are hashed by their addresses, which are others when a rank runs again.
        self.sets += 1
        named = all(isinstance(one, str) for one in value)
        content = frozenset(value) if named else self.sets
        mark = Mark(hash(("order", self.recorder.rank, content)))
        turned = self.recorder.decide(mark, False, cause="order")
        first, *others = value
        return [*others, first] if turned else value

    def _popped(self, elements: set[Any]) -> Any:
        one = next(iter(self.ordered(elements)))
        elements.remove(one)
        return one

    def _hashed(self, value: Any) -> Any:
        number = hash(value)
        if isinstance(value, _HASHED_ALIKE):
            return number
        return marked(number, Mark(hash(("seed", self.recorder.rank, number))))

    def size(self, value: Any, number: Any, whole: bool = False) -> Any:
        """A size of a tensor; marked where it depends on values, as that of `x[x > 0]`."""
        value = getattr(value, "_local_tensor", value)
        known = self.recorder.buffers.length(value) if isinstance(value, torch.Tensor) else None
        if known is None:
            return number
        if isinstance(number, tuple):
            return tuple(marked(one, known[1]) if one == known[0] else one for one in number)
        return marked(number, known[1]) if whole or number == known[0] else number


def _device(kind: Any, *args: Any, **named: Any) -> torch.device:
    """A device; a number alone names a GPU, also where torch has none."""
    number = isinstance(kind, int) and torch.cuda.is_available()
    return torch.device("cuda", kind) if number else torch.device(kind, *args, **named)


def _chosen(elements: Any, key: Any) -> Any:
    """`elements[key]`; where a marked number names it, a number with its mark, or a decision."""
    if not isinstance(key, MarkedInt) or type(elements) not in (list, tuple, dict):
        return elements[key]
    one = elements[plain(key)]
    if isinstance(one, int | float):
        return marked(one, key.mark)
    if len(elements) <= _MOST_CHOICES:
        places = elements if isinstance(elements, dict) else range(len(elements))
        key = key if plain(key) in places else key + len(elements)
        asked = [place for place in places if key == place]  # all of them, so that each is known
        return elements[asked[0]] if asked else one
    return one


def _among(one: Any, several: Any) -> bool:
    """`one in several`, where one may be a marked number."""
    if isinstance(one, MarkedInt | MarkedFloat) and type(several) in (set, frozenset, dict):
        return any(list(map(one.__eq__, several)))
    return one in several


def _counted(*bounds: Any) -> Any:
    """A range; one up to a marked number decides before each of its steps."""
    if len(bounds) > 2 or not isinstance(bounds[-1], MarkedInt):
        return range(*map(plain, bounds))

    def count() -> Iterator[int]:
        step = plain(bounds[0]) if len(bounds) > 1 else 0
        while bounds[-1] > step:
            yield step
            step += 1

    return count()


def _drawn(source: Any, function: Any, *args: Any, **named: Any) -> Any:
    """Random numbers, marked by the state that they are drawn of."""
    if isinstance(source, np.random.Generator):
        state = str(source.bit_generator.state)
    else:
        state = str(source.getstate() if isinstance(source, random.Random) else source.get_state())
    result = keeping(function, "draws")(*args, **named)
    return marked(result, Mark(hash((state, function.__name__))))
