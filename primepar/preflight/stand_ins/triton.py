"""In place of the package triton: a kernel computes nothing, and what it writes is not known.

It reads all tensors that it is given. It writes those into which its source stores, directly or by
pointers that are made of them; where none is found, all of them.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cached_property
from textwrap import dedent
from typing import Any

import torch
from torch import library

_LIBRARY = library.Library("preflight", "DEF")
_LIBRARY.define("kernel(Tensor(a!)[] written, Tensor[] read, str name) -> ()")


@library.impl(_LIBRARY, "kernel", "CPU")
def _kernel(written: list[torch.Tensor], read: list[torch.Tensor], name: str) -> None:
    for tensor in written:
        tensor.zero_()


def cdiv(x: int, y: int) -> int:
    """The quotient, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(n - 1, 0).bit_length()


class Config:
    """One choice of constants of a kernel."""

    def __init__(self, kwargs: dict[str, Any], **_: Any) -> None:
        self.kwargs = kwargs


class JITFunction:
    """A kernel: `kernel[grid](tensors, numbers)` starts it."""

    def __init__(self, function: Any, constants: dict[str, Any] | None = None) -> None:
        self.function = function.function if isinstance(function, JITFunction) else function
        self.constants = constants or {}
        self.__name__ = self.function.__name__

    @cached_property
    def stores(self) -> set[str]:
        """The names of its parameters that it writes to."""
        tree = ast.parse(dedent(inspect.getsource(self.function)))
        made: dict[str, set[str]] = {}
        stored: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for one in (one for target in targets for one in _names(target)):
                    made.setdefault(one, set()).update(_names(node.value))
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            if name == "store" or name.startswith("atomic_"):
                stored |= _names(node.args[0])
        ready = list(stored)
        while ready:
            new = made.get(ready.pop(), set()) - stored
            stored |= new
            ready += new
        return stored

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def start(*args: Any, **named: Any) -> None:
            names = list(inspect.signature(self.function).parameters)
            given = dict(zip(names, args, strict=False)) | self.constants | named
            if callable(grid):
                grid(given)
            tensors = {n: t.detach() for n, t in given.items() if isinstance(t, torch.Tensor)}
            written = [one for name, one in tensors.items() if name in self.stores]
            rest = {n: value for n, value in given.items() if n not in tensors}
            torch.ops.preflight.kernel(
                written or list(tensors.values()), list(tensors.values()), f"{self.__name__} {rest}"
            )

        return start


def _names(node: ast.AST) -> set[str]:
    """Names in an expression, but not in what it loads: that is data, and no pointer."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load":
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    return {name for child in ast.iter_child_nodes(node) for name in _names(child)}


def jit(function: Any = None, **_: Any) -> Any:
    """Make a kernel of a function."""
    return jit if function is None else JITFunction(function)


def autotune(configs: list[Config], *_: Any, **__: Any) -> Callable[[Any], JITFunction]:
    """Take the first choice."""
    return lambda function: JITFunction(function, configs[0].kwargs if configs else {})


def heuristics(values: dict[str, Any]) -> Callable[[Any], Any]:
    """Leave a kernel as it is."""
    return lambda function: function


constexpr = int


def __getattr__(name: str) -> Any:
    """What a kernel's source names, as of `triton.language`: nothing of it runs."""
    if name.startswith("__"):
        raise AttributeError(name)
    return sys.modules[__name__] if name == "language" else jit
