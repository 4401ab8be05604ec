"""A Hugging Face folder besides its tensors: the index of shards, `config.json`, a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primepar.errors import WeightError
from primepar.models.config import ModelConfig
from primepar.models.config_json import CONFIG, config_content, differing, load_config
from primepar.models.tensor_file import Layout, stored_bytes

SHARD_BYTES = 5_000_000_000
"""Largest file of a folder, as transformers wrote them up to version 4."""
MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",
)  # fmt: skip
"""Files about the text, which training does not change."""


def check_config(folder: Path, config: ModelConfig) -> None:
    """Compare the `config.json` of a folder of weights, if there is one, with the model.

    The context and dropout may differ. Raises `WeightError` for any other difference.
    """
    if not (folder / CONFIG).is_file():
        return
    theirs = load_config(folder)
    for name in differing(theirs, config):
        if name != "context":
            raise WeightError(
                f"{folder / CONFIG}: expected {name} {getattr(config, name)} as in the model, got "
                f"{getattr(theirs, name)}: give the weights of this model"
            )


def shards(layout: Layout, limit: int = SHARD_BYTES) -> dict[str, dict[str, Any]]:
    """Return file -> layout of its tensors: one file, or several of at most `limit` bytes.

    A tensor that is larger than the limit has a file of its own.
    """
    groups: list[dict[str, Any]] = [{}]
    used = 0
    for name, (dtype, shape) in layout.items():
        size = stored_bytes(dtype, shape)
        if groups[-1] and used + size > limit:
            groups.append({})
            used = 0
        groups[-1][name] = (dtype, shape)
        used += size
    if len(groups) == 1:
        return {MODEL: groups[0]}
    stem = MODEL.partition(".")[0]
    return {
        f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups, 1)
    }


def index_text(files: Mapping[str, Layout]) -> bytes:
    """Return the index of several files: which of them has a tensor."""
    total = sum(stored_bytes(*kind) for layout in files.values() for kind in layout.values())
    places = {name: file for file, layout in files.items() for name in layout}
    return _json({"metadata": {"total_size": total}, "weight_map": places})


def write_rest(
    folder: Path, config: ModelConfig, files: Mapping[str, Layout], like: Path | None
) -> None:
    """Write all but the tensors of a folder.

    `like` is the folder that the run began with: its tokenizer is copied, and its `config.json` too
    if that is of this very model. Raises `OSError` if a file cannot be read or written.
    """
    if len(files) > 1:
        (folder / INDEX).write_bytes(index_text(files))
    if like is not None:
        for name in COPIED:
            if (like / name).is_file():
                (folder / name).write_bytes((like / name).read_bytes())
    if like is not None and (like / CONFIG).is_file() and load_config(like) == config:
        content = (like / CONFIG).read_bytes()
    else:
        code = next(dtype for layout in files.values() for dtype, _ in layout.values())
        content = _json(config_content(config, code))
    (folder / CONFIG).write_bytes(content)


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
