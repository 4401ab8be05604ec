"""Models: their configurations, their operators and their weights.

What reads and writes weights loads NumPy when it is first used, so that plans are made without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from primepar.models.config import GPTConfig, ModelConfig, initial_parameter
from primepar.models.config_json import load_config
from primepar.models.graph import Operator, operators

if TYPE_CHECKING:
    from primepar.models.weights import WeightFile, write_weights

_MODULES = {"WeightFile": "weights", "write_weights": "weights"}

__all__ = [
    "GPTConfig",
    "ModelConfig",
    "Operator",
    "WeightFile",
    "initial_parameter",
    "load_config",
    "operators",
    "write_weights",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
