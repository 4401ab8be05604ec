"""The tensors of a rank's state under the names that they have in a checkpoint.

Names and shapes are those of the model, `model.<parameter>`, `exp_avg.<parameter>` and
`exp_avg_sq.<parameter>`, and do not depend on the mesh. So a checkpoint of one plan loads under
another one. In half precision `master.<parameter>` is the copy in float32.

Under local SGD the replicas differ between averages, and their moments always do. Then a
checkpoint has the tensors of every replica, `replica1.model.<parameter>`, and loads for as many
replicas. One without replicas loads for any number of them, which then begin alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from primepar.distributed.checkpoints.planning import HeldBoxes, HeldTensors
from primepar.distributed.runtime.training_state import ParameterBlock, TrainingState, written
from primepar.operators import MASTER

_COPY = f".{MASTER}"
_KINDS = {"": "model", ".m": "exp_avg", ".v": "exp_avg_sq"}
"""Suffix of a tensor in a program -> its prefix in a checkpoint, as in torch's optimizers."""


def tensor_name(name: str, suffix: str, replica: int | None) -> str:
    """Return `model.<name>`, or `replica1.exp_avg.<name>`."""
    kind = _KINDS.get(suffix, suffix.lstrip("."))
    return f"{'' if replica is None else f'replica{replica}.'}{kind}.{name}"


def to_save(state: TrainingState, *, copied: bool) -> HeldTensors:
    """Return the boxes that this rank writes, copied to host memory or as they are."""
    replica = state.replica if state.replicas > 1 else None
    tensors: dict[str, HeldBoxes] = {}
    for name, suffix, parts in _parts(state):
        boxes = [(_offsets(part), _elements(state, name + suffix, part)) for part in written(parts)]
        if copied:
            boxes = [(offsets, _copy(elements)) for offsets, elements in boxes]
        if boxes:
            shape = state.plan.model.parameter_shapes[name]
            tensors[tensor_name(name, suffix, replica)] = HeldBoxes(tuple(shape), boxes)
    return tensors


def to_load(state: TrainingState, suffix: str, saved: Collection[str]) -> HeldTensors:
    """Return the boxes of this rank's tensors of a suffix, to be filled; padding is set to zero.

    The names are those of a checkpoint that has the tensors `saved`.
    """
    first = next(iter(state.plan.model.parameter_shapes))
    replica = None if tensor_name(first, "", None) in saved else state.replica
    tensors: dict[str, HeldBoxes] = {}
    for name, shape in state.plan.model.parameter_shapes.items():
        boxes = []
        for part in state.places_of(name, suffix):
            state.block(name + suffix, part).zero_()
            if not part.padding:
                boxes.append((_offsets(part), _elements(state, name + suffix, part)))
        if boxes:
            source = tensor_name(name, _source(state, name, suffix, replica, saved), replica)
            tensors[source] = HeldBoxes(tuple(shape), boxes)
    return tensors


def _source(
    state: TrainingState, name: str, suffix: str, replica: int | None, saved: Collection[str]
) -> str:
    """Return the suffix of what a tensor is read from, if runs in half precision go on otherwise.

    A parameter without a copy is read from the copy, a copy that was not saved from the parameter.
    """
    copied = tensor_name(name, _COPY, replica) in saved
    if suffix == "" and copied and _COPY not in state.kinds:
        return _COPY
    return "" if suffix == _COPY and not copied else suffix


def _parts(
    state: TrainingState,
) -> Iterator[tuple[str, str, tuple[ParameterBlock, ...]]]:
    for name in state.plan.model.parameter_shapes:
        for suffix in state.kinds:
            yield name, suffix, state.places_of(name, suffix)


def _offsets(part: ParameterBlock) -> tuple[int, ...]:
    return tuple(line.start for line in part.whole)


def _elements(state: TrainingState, name: str, part: ParameterBlock) -> torch.Tensor:
    return state.block(name, part)[part.unpadded]


def _copy(elements: torch.Tensor) -> torch.Tensor:
    return elements.to("cpu", copy=True, memory_format=torch.contiguous_format)
