"""Measures the MLP of one shape under all contenders, in one world."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from torch import distributed as dist

from benchmarks.executor.contender import Contender, MlpData, check
from benchmarks.executor.dtensor_mlp import DTensorMlp
from benchmarks.executor.module_mlp import ModuleMlp
from benchmarks.executor.part_program import PartProgram
from benchmarks.executor.plain_mlp import (
    ColumnFloor,
    MegatronMlp,
    RowFloor,
    SequenceMegatronMlp,
)
from benchmarks.executor.rounds import Timed, timed
from benchmarks.executor.shapes import MlpShape
from primepar.errors import PrimeParError
from primepar.models import ModelConfig
from primepar.plan import PRESETS, preset_plan

OPERATORS = ("blocks.0.fc1", "blocks.0.act", "blocks.0.fc2")
SEQUENCES = 16
"""Sequences of the batch, which the rows are divided into; an MLP has no other use of them."""
FLOORS = (ColumnFloor.name, RowFloor.name)


class MlpTimes(Struct, frozen=True):
    """What one world measured, and why plans were left out."""

    timed: list[Timed]
    left_out: dict[str, str]


def measure(shape: MlpShape, rounds: int, names: list[str]) -> MlpTimes:
    """Check and time the contenders whose name contains one of `names`, or all; on every rank."""
    data = MlpData.of(shape)
    expected = None if dist.get_rank() else data.expected()
    left_out: dict[str, str] = {}
    floors: list[Contender] = [ColumnFloor(data), RowFloor(data)]
    contenders = list(_contenders(data, shape, names, left_out))
    for contender in contenders:
        check(contender, expected)
    return MlpTimes(timed([*floors, *contenders], rounds), left_out)


def _contenders(
    data: MlpData, shape: MlpShape, names: list[str], left_out: dict[str, str]
) -> Iterator[Contender]:
    yield from (DTensorMlp(data, False), DTensorMlp(data, True))
    if _asked(MegatronMlp.name, names):
        yield MegatronMlp(data)
    if _asked(SequenceMegatronMlp.name, names):
        yield SequenceMegatronMlp(data)
    model = ModelConfig.of(
        "gpt",
        layers=1,
        hidden=shape.hidden,
        heads=min(shape.hidden, 64),
        context=shape.rows // SEQUENCES,
        vocabulary=shape.hidden,
    )
    for preset in PRESETS:
        if _asked(preset, names):
            try:
                plan = preset_plan(preset, model, shape.ranks)
                yield PartProgram(preset, plan, OPERATORS, SEQUENCES, data.tensors())
                yield ModuleMlp(data, preset, plan)
            except PrimeParError as error:
                left_out[preset] = str(error)


def _asked(name: str, names: list[str]) -> bool:
    return not names or any(asked in name for asked in names)
