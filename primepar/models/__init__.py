"""Models: their configurations, their operators and their weights."""

from primepar.models.config import GPTConfig, ModelConfig, initial_parameter
from primepar.models.graph import Operator, operators

__all__ = ["GPTConfig", "ModelConfig", "Operator", "initial_parameter", "operators"]
