"""Spatial-temporal tensor partitioning of transformers: written once, emulated, proved and run.

`show`, `check`, `verify`, `lower`, `simulate`, `plan` and `price` are described in `primepar.api`,
and `parallelize` in its module. They are loaded when they are first used. `primepar.plan` and
`primepar.verify` are packages as well: they can be imported from, and they can be called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Signature, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from primepar.errors import PrimeParError
from primepar.schedule.expression import where
from primepar.schedule.primitive import ANY, Primitive

if TYPE_CHECKING:
    from primepar.api import check, lower, plan, price, show, simulate, verify
    from primepar.distributed.parallel.module import parallelize

for _linked in ("reference", "verify", "commands/broken"):
    # Git without links, as on Windows, and some archives have a file with the path in it instead.
    if Path(__path__[0], _linked).is_file():
        raise ImportError(
            f"primepar/{_linked}: expected a link to a folder, got a file: "
            "run git config core.symlinks true, then git checkout -- primepar"
        )

__version__ = "0.1.0"
__all__ = [
    "ANY",
    "PrimeParError",
    "Primitive",
    "__version__",
    "check",
    "lower",
    "parallelize",
    "plan",
    "price",
    "show",
    "simulate",
    "verify",
    "where",
]

_QUESTIONS = ("check", "lower", "plan", "price", "show", "simulate", "verify")
_PACKAGES = ("plan", "verify")
_PARALLELIZE = "primepar.distributed.parallel.module"


class _CalledPackage(ModuleType):
    """A package with the name of a question, which asks it when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._question(*args, **kwargs)

    @property
    def _question(self) -> Callable[..., Any]:
        name = self.__name__.rpartition(".")[2]
        function: Callable[..., Any] = getattr(import_module("primepar.api"), name)
        return function

    @property
    def __signature__(self) -> Signature:
        return signature(self._question)


class _Root(ModuleType):
    """This package. Python binds a package that it imports in the package that holds it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _PACKAGES and isinstance(value, ModuleType):
            value.__class__ = _CalledPackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root


if not TYPE_CHECKING:  # so that a misspelt name is an error of types, too

    def __getattr__(name: str) -> Any:
        if name == "parallelize":
            return import_module(_PARALLELIZE).parallelize
        if name not in _QUESTIONS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        return getattr(import_module("primepar.api"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
