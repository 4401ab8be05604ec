"""Steps of plans with a pipeline: emulated as the dense transformer computes, and proved.

With HYPOTHESIS_PROFILE=ci every preset plan is run in a stage of every schedule.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle, product

import numpy as np
import pytest
from lowered_steps import lower_step
from partitioned_cases import DRAW, drawn_batch, drawn_parameters
from pipelined_plans import POSITIONS, SCHEDULES, pipelined
from profiles import IS_LONG, few, long
from step_cases import held_by

from primepar.distributed.runtime.shapes import Shapes
from primepar.plan import Plan, preset_plan
from primepar.reference.emulator.model import EmulatedModel, step_difference
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule.ledger import peak
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import AllReduce, Program
from primepar.verify import verify_program

PRESETS = (
    ("megatron", 2), ("megatron-sp", 2), ("summa", 4), ("tesseract", 4), ("primepar", 4),
    ("stationary", 4), ("data", 2), ("M2,megatron", 4),
)  # fmt: skip
"""Every preset plan, with the devices of a stage; 3D has a test of its own."""
FEW = [
    *((schedule, *preset) for schedule, preset in zip(cycle(SCHEDULES), PRESETS, strict=False)),
    *((schedule, "megatron", 2) for schedule in SCHEDULES[1:]),
    ("zbv", "primepar", 4),
]
ALL = [(schedule, *preset) for schedule, preset in product(SCHEDULES, (*PRESETS, ("3d", 8)))]
CASES = ALL if IS_LONG else sorted(set(FEW))[::4]


def step_of(plan: Plan) -> Program:
    assert plan.batch is not None
    return lower_step(plan, plan.batch, POSITIONS)


@pytest.mark.parametrize(("schedule", "within", "ranks"), CASES)
def test_a_pipeline_computes_what_one_device_computes(
    schedule: str, within: str, ranks: int
) -> None:
    family = "llama" if within in ("megatron", "data") else "gpt2"
    plan = pipelined(schedule, within, 2 * ranks, family)
    difference, name = step_difference(plan, plan.batch or 0, POSITIONS)
    assert difference < 1e-10, name
    assert verify_program(step_of(plan)).verdict == "proved"


@few
@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [("gpipe", "3x2"), ("1f1b", "4x6"), ("interleaved-1f1b", "3x3"), ("zb-h1", "3x4"),
          ("zbv", "3x5"), ("1f1b", "1x3")],
)  # fmt: skip
def test_stages_of_one_device(schedule: str, sizes: str) -> None:
    plan = pipelined(schedule, "data", int(sizes[0]), "gpt2", sizes)
    difference, name = step_difference(plan, plan.batch or 0, POSITIONS)
    assert difference < 1e-10, name
    assert verify_program(step_of(plan)).verdict == "proved"


@long
def test_three_dimensions_in_two_stages() -> None:
    plan = pipelined("1f1b", "3d", 16, "llama")
    difference, name = step_difference(plan, plan.batch or 0, POSITIONS)
    assert difference < 1e-10, name


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_evaluation_is_forward_of_all_micro_batches(schedule: str) -> None:
    plan = pipelined(schedule, "M2,megatron", 8)
    parameters = drawn_parameters(plan.model)
    tokens, targets = drawn_batch(plan.model, plan.batch or 0, POSITIONS)
    emulated = EmulatedModel(plan.model, plan, parameters)
    dense = Transformer(plan.model, parameters)
    np.testing.assert_allclose(emulated.logits(tokens), dense.logits(tokens), rtol=1e-10)
    expected, _ = dense.loss_and_gradients(tokens, targets, DRAW)
    assert emulated.loss(tokens, targets, DRAW) == pytest.approx(expected, rel=1e-12)


def test_gradients_are_reduced_once_for_all_micro_batches() -> None:
    program = step_of(pipelined("1f1b", "M2,megatron", 8, sizes="2x4"))
    reduced = Counter(
        block
        for node in program.programs[0]
        if isinstance(node, AllReduce)
        for block in node.reduced
        if ".grad" in block
    )
    assert "blocks.0.qkv.weight.grad[0,0]" in reduced
    assert "blocks.0.norm1.weight.grad[0]" in reduced
    assert set(reduced.values()) == {1}


def test_peaks_are_the_same_for_every_reader() -> None:
    plan = pipelined("zb-h1", "primepar", 8)
    program = step_of(plan)
    elements = Shapes(program).elements
    counted = [peak(program, rank, elements) for rank in range(program.ranks)]
    assert held_by(program) == counted
    parameters = drawn_parameters(plan.model)
    tokens, targets = drawn_batch(plan.model, plan.batch or 0, POSITIONS)
    step = EmulatedModel(plan.model, plan, parameters).update(tokens, targets, 1e-3)
    assert step.peak == counted


def test_a_later_stage_of_1f1b_stashes_fewer_micro_batches() -> None:
    """The stash of stage i is that of at most p - i micro-batches; GPipe has all of them."""
    stages, least = 3, 4

    def stashed(schedule: str, micro_batches: int) -> list[int]:
        plan = pipelined(schedule, "data", stages, sizes=f"{stages}x{micro_batches}")
        program = step_of(plan)
        name = "blocks.{}.norm1/normed["
        return [most_held(program, stage, name.format(stage)) for stage in range(stages)]

    for micro_batches in (least, least + 3):
        assert stashed("1f1b", micro_batches) == [3, 2, 1]
        assert stashed("gpipe", micro_batches) == [micro_batches] * stages


def most_held(program: Program, rank: int, prefix: str) -> int:
    """Most blocks with this prefix that a rank has at once."""
    one_block = {name: 1 for name in blocks_of(program, rank) if name.startswith(prefix)}
    return peak(program, rank, lambda name: one_block.get(name, 0))


def blocks_of(program: Program, rank: int) -> set[str]:
    return {
        node.accumulates for node in program.programs[rank] if hasattr(node, "accumulates")
    }  # fmt: skip


def test_the_weight_is_at_home_after_every_phase() -> None:
    """Copies of a travelling weight are freed: only its home is left for the next forward."""
    plan = pipelined("gpipe", "primepar", 8)
    program = lower_step(plan, plan.batch or 0, POSITIONS, passes=())
    meaning = Meaning(program)
    tensors = {meaning.real(name) for name in program.tensors or {} if "/W." in name}
    assert "blocks.0.qkv.weight" in tensors
    left = {
        name
        for rank, nodes in enumerate(program.programs)
        for name in held_at_the_end(program, rank, nodes)
        if "/W." in name and ".pieces" not in name
    }
    assert left == set()


def held_at_the_end(program: Program, rank: int, nodes: tuple[object, ...]) -> set[str]:
    from primepar.passes.block_uses import Rank, RankList

    held = set((program.initial or ())[rank])
    for used in RankList(nodes, Rank(rank)).uses:  # type: ignore[arg-type]
        held -= set(used.gone)
        held |= set(used.made) - (set(used.gone) - set(used.made))
    return held


def test_replicas_and_stages_have_the_parameters_of_their_stage() -> None:
    from primepar.operators import parameter_views

    plan = preset_plan("1f1b:2x2,M2,megatron", pipelined("1f1b", "data", 2).model, 8)
    views = parameter_views(plan)
    first, last = views["blocks.0.qkv.weight"].held, views["blocks.1.qkv.weight"].held
    assert [len(held) for held in first] == [1] * 4 + [0] * 4
    assert [len(held) for held in last] == [0] * 4 + [1] * 4
    assert [len(held) for held in views["embedding.token"].held] == [1] * 4 + [0] * 4
