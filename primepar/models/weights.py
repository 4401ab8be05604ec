"""Weights in safetensors under Hugging Face names: blocks of our parameters out of them, and back.

A rank reads the slices that it holds and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from primepar.errors import WeightError
from primepar.models.config import ModelConfig
from primepar.models.names import NAMES, Source, sources
from primepar.models.tensor_file import (
    CODES,
    DTYPES,
    Array,
    Layout,
    StoredTensor,
    stored,
    stored_tensors,
    write_tensors,
)

_BUFFERS = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$")  # in old files
_ROWS = 4096


class WeightFile:
    """The weights of one model, in a file, in the files of an index, or in the folder of either.

    Raises `WeightError` where a tensor is missing, unknown, of another shape or of a type that is
    no float, and where a file is cut short.
    """

    def __init__(self, path: str | Path, config: ModelConfig) -> None:
        self.path = Path(path)
        self.config = config
        self.tensors = stored_tensors(self.path)
        self.prefix = _has_prefix(self.tensors, config)
        expected = {
            source.tensor: source.shape
            for name in config.parameter_shapes
            for source in sources(config, name, self.prefix)
        }
        for name, shape in expected.items():
            self._check_tensor(name, shape)
        self._check_others(expected)

    def read_block(self, name: str, slices: tuple[slice, ...] = ()) -> Array:
        """Slice of one of our parameters, the whole by default; slices have no step.

        The type is that of the file, float32 for bfloat16. A slice that reaches over the end is
        cut there, as in NumPy. Raises `WeightError` for an unknown name.
        """
        if name not in self.config.parameter_shapes:
            raise WeightError(
                f"parameter {name!r}: expected a name of ModelConfig.parameter_shapes, "
                "like 'blocks.0.qkv.weight'"
            )
        shape = self.config.parameter_shapes[name]
        slices += (slice(None),) * (len(shape) - len(slices))
        extent = [part.indices(size)[:2] for part, size in zip(slices, shape, strict=True)]
        places = sources(self.config, name, self.prefix)
        parts = [self._read(source, extent) for source in places]
        block = np.empty([max(end - begin, 0) for begin, end in extent], np.result_type(*parts))
        for source, part in zip(places, parts, strict=True):
            inside, _ = source.columns(*extent[source.dim])
            block[inside if source.dim == 0 else (slice(None), inside)] = part
        return block

    def dtypes(self) -> dict[str, str]:
        """Type of each tensor, F64, F32, F16 or BF16, under the name that it has with its head."""
        return {
            named.tensor: self.tensors[source.tensor].dtype
            for name in self.config.parameter_shapes
            for named, source in zip(
                sources(self.config, name), sources(self.config, name, self.prefix), strict=True
            )
        }

    def _read(self, source: Source, extent: list[tuple[int, int]]) -> Array:
        _, columns = source.columns(*extent[source.dim])
        slices = [slice(begin, max(begin, end)) for begin, end in extent]
        slices[source.dim] = columns
        part = self.tensors[source.tensor].read(tuple(slices[:: -1 if source.transposed else 1]))
        return part.T if source.transposed else part

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self.tensors:
            raise self._foreign(f"expected the tensor {name!r}, got none")
        tensor = self.tensors[name]
        if tensor.shape != shape:
            raise self._foreign(f"tensor {name!r}: expected shape {shape}, got {tensor.shape}")
        if tensor.dtype not in DTYPES:
            raise WeightError(
                f"{self.path}: tensor {name!r}: expected one of {', '.join(DTYPES)}, "
                f"got {tensor.dtype}: convert the weights first"
            )

    def _check_others(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        for name, tensor in self.tensors.items():
            if name == "lm_head.weight" and self.config.tied:
                self._check_tied(tensor)
            elif name not in expected and not _BUFFERS.search(name):
                raise self._foreign(f"expected no tensor {name!r}, got one of {tensor.shape}")

    def _foreign(self, problem: str) -> WeightError:
        return WeightError(
            f"{self.path}: {problem}: give the weights that belong to this {self.config.family} "
            "configuration"
        )

    def _check_tied(self, head: StoredTensor) -> None:
        """Refuse a head that a configuration with a tied one would silently leave out."""
        table = self.tensors[sources(self.config, "embedding.token", self.prefix)[0].tensor]
        same = (head.shape, head.dtype) == (table.shape, table.dtype) and all(
            np.array_equal(head.read((rows,)), table.read((rows,)))
            for rows in (slice(row, row + _ROWS) for row in range(0, self.config.vocabulary, _ROWS))
        )
        if not same:
            raise WeightError(
                f"{self.path}: tensor 'lm_head.weight': expected the token table, as the "
                "configuration ties them, got another: set tie_word_embeddings to false"
            )


def _has_prefix(tensors: Mapping[str, StoredTensor], config: ModelConfig) -> bool:
    prefix = NAMES[config.family].prefix if config.family in NAMES else ""
    return any(name.startswith(prefix) for name in tensors)


def write_weights(
    path: str | Path,
    config: ModelConfig,
    parameters: Mapping[str, Array],
    like: WeightFile | None = None,
) -> None:
    """Write the whole of every parameter under Hugging Face names.

    Each tensor has the type that it has in `like`, by default that of its parameter. The file is
    written whole or not at all. The padding rows of OPT's position table, which no model reads, are
    zero. Raises `WeightError` where a parameter is missing, unknown, of another shape or no float,
    or the file cannot be written.
    """
    _check_parameters(config, parameters)
    types = {name: CODES[parameter.dtype.name] for name, parameter in parameters.items()}
    layout = file_layout(config, types, like)
    pairs = zip(_tensors(config, parameters), layout.values(), strict=True)
    write_tensors(Path(path), layout, (stored(tensor, dtype) for tensor, (dtype, _) in pairs))


def file_layout(
    config: ModelConfig, dtypes: Mapping[str, str], like: WeightFile | None = None
) -> Layout:
    """Tensors of a file of all parameters, with the types of `like` or else of the parameters."""
    theirs = {} if like is None else like.dtypes()
    return {
        source.tensor: (theirs.get(source.tensor, dtypes[name]), source.shape)
        for name in config.parameter_shapes
        for source in sources(config, name)
    }


def _check_parameters(config: ModelConfig, parameters: Mapping[str, Array]) -> None:
    expected = config.parameter_shapes
    for name in (*expected, *parameters):
        if name not in parameters:
            raise WeightError(f"parameters: expected {name!r}, got none")
        if name not in expected:
            raise WeightError(
                f"parameter {name!r}: expected a name of ModelConfig.parameter_shapes, "
                "like 'blocks.0.qkv.weight'"
            )
        if parameters[name].shape != expected[name]:
            raise WeightError(
                f"parameter {name!r}: expected shape {expected[name]}, got {parameters[name].shape}"
            )
        if parameters[name].dtype.name not in CODES:
            raise WeightError(
                f"parameter {name!r}: expected one of {', '.join(CODES)}, "
                f"got {parameters[name].dtype}"
            )


def _tensors(config: ModelConfig, parameters: Mapping[str, Array]) -> Iterator[Array]:
    """Tensors of the file in the order of the parameters, each made only when it is asked for."""
    for name, shape in config.parameter_shapes.items():
        whole = parameters[name]
        places = sources(config, name)
        for tensor in dict.fromkeys(source.tensor for source in places):
            parts = [source for source in places if source.tensor == tensor]
            made = np.zeros(parts[0].shape, whole.dtype)
            for source in parts:
                inside, columns = source.columns(0, shape[source.dim])
                view = made.T if source.transposed else made
                if source.dim == 0:
                    view[columns] = whole[inside]
                else:
                    view[:, columns] = whole[:, inside]
            yield made
