"""Published models by name, so that a plan needs no file: the six of PrimePar's evaluation.

Sizes are those of the models' own papers: OPT (Zhang et al. 2022), Llama 2 (Touvron et al. 2023),
BLOOM (BigScience 2022).
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from primepar.errors import ConfigError, nearest
from primepar.models.config import ModelConfig
from primepar.models.config_json import load_config

_OPT = {"context": 2048, "vocabulary": 50272}
_LLAMA = {"context": 4096, "vocabulary": 32000, "epsilon": 1e-5}
_BLOOM = {"context": 2048, "vocabulary": 250880}

MODELS = MappingProxyType(
    {
        "opt-6.7b": ModelConfig.of("opt", layers=32, hidden=4096, heads=32, **_OPT),
        "opt-175b": ModelConfig.of("opt", layers=96, hidden=12288, heads=96, **_OPT),
        "llama-2-7b": ModelConfig.of(
            "llama", layers=32, hidden=4096, heads=32, ffn=11008, **_LLAMA
        ),
        "llama-2-70b": ModelConfig.of(
            "llama", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, **_LLAMA
        ),
        "bloom-7b1": ModelConfig.of("bloom", layers=30, hidden=4096, heads=32, **_BLOOM),
        "bloom-176b": ModelConfig.of("bloom", layers=70, hidden=14336, heads=112, **_BLOOM),
    }
)
"""Name -> sizes of a published model."""


def find_model(name_or_path: str) -> ModelConfig:
    """The model of that name, or that a `config.json` describes.

    Raises `ConfigError`, as `load_config`, and for a name that is neither.
    """
    if name_or_path in MODELS:
        return MODELS[name_or_path]
    if not Path(name_or_path).exists() and Path(name_or_path).suffix != ".json":
        raise ConfigError(
            f"expected a config.json or one of {', '.join(MODELS)}, got {name_or_path}"
            f"{nearest(name_or_path, MODELS, cutoff=0.85)}"
        )
    return load_config(name_or_path)
