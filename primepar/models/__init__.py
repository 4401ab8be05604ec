"""Models: their configurations, their operators and their weights."""

from primepar.models.config import GPTConfig, ModelConfig, initial_parameter
from primepar.models.config_json import load_config
from primepar.models.graph import Operator, operators
from primepar.models.weights import WeightFile, write_weights

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
