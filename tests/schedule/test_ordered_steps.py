"""Training steps under the rules of NCCL, on real processes: gradients as on one device.

With HYPOTHESIS_PROFILE=ci also the plans that need eight processes, and every plan of every family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import cycle

import msgspec
import numpy as np
import ordered_ranks
import pytest
from distributed_ranks import on_ranks
from distributed_steps import BATCH, POSITIONS, Passes, program_of
from nccl_rules import LAZY
from partitioned_cases import ON_FOUR, PRESET_MESHES, SHAPES, dense_step, plan_apart
from pipelined_plans import pipelined
from profiles import IS_LONG

from primepar.plan import Plan, preset_plan
from primepar.schedule import Program
from primepar.schedule.meaning import Meaning
from primepar.schedule.one_queue import in_one_queue
from primepar.schedule.program import Instruction, IRecv, ISend
from primepar.verify import verify_program

CASES: list[tuple[str, str, int, Passes]] = [
    *((family, name, 4, True) for family, name in zip(cycle(SHAPES), (*ON_FOUR, "apart"))),
    ("bloom", "primepar", 4, False), ("llama", "megatron-sp", 4, "chunks"),
]  # fmt: skip
"""Family, plan, devices, and whether after the passes, or in chunks."""
PIPELINES = [
    ("1f1b", "megatron", "gpt2", "2x4"), ("zbv", "data", "opt", "2x4"),
    ("zb-h1", "megatron-sp", "bloom", "2x2"), ("interleaved-1f1b", "M2,data", "llama", "2x2"),
    ("gpipe", "data", "llama", "2x2"),
]  # fmt: skip
"""Schedule, plan of a stage, family, stages and micro-batches."""
if IS_LONG:
    CASES += [
        *(("gpt2", name, ranks, True) for name, ranks in PRESET_MESHES),
        *((family, name, 4, True) for family in SHAPES for name in (*ON_FOUR, "apart")),
    ]


def plan_of(family: str, name: str, ranks: int) -> Plan:
    if name == "apart":
        return plan_apart(SHAPES[family], ranks)
    return preset_plan(name, SHAPES[family], ranks)


def piped(schedule: str, within: str, family: str, sizes: str) -> Plan:
    plan = pipelined(schedule, within, 4, family, sizes)
    return preset_plan(f"{schedule}:{sizes},{within}", plan.model, 4, BATCH)


@cache
def results(ranks: int) -> list[list[ordered_ranks.OrderedStep]]:
    """What every rank has after the steps of all plans on this many."""
    asked = [
        (plan.model, msgspec.json.encode(program))
        for plan, program in plans()
        if plan.ranks == ranks
    ]
    return on_ranks(ranks, ordered_ranks.steps, asked, backend=LAZY)


@cache
def plans() -> list[tuple[Plan, Program]]:
    """All plans, with the programs of their steps, as the trainer gives them to all ranks."""
    ready: list[tuple[Plan, Passes]] = [(plan_of(*case[:3]), case[3]) for case in CASES]
    ready += [(piped(*case), True) for case in PIPELINES]
    return [(plan, in_one_queue(program_of(plan, "gradients", passes))) for plan, passes in ready]


def test_posts_move_and_nothing_else_and_the_program_is_proved() -> None:
    program = program_of(plan_of("gpt2", "stationary", 4), "gradients", True)
    moved = in_one_queue(program)
    assert moved is not program
    assert verify_program(moved).verdict == "proved"
    for before, after in zip(program.programs, moved.programs, strict=True):
        assert Counter(posts(before)) == Counter(posts(after))
        assert [node for node in before if node not in posts(before)] == [
            node for node in after if node not in posts(before)
        ]


def posts(nodes: Iterable[Instruction]) -> list[Instruction]:
    """What may move: messages, and collectives that do not block."""
    return [node for node in nodes if isinstance(node, ISend | IRecv)]


NAMES = ["-".join(map(str, case)) for case in (*CASES, *PIPELINES)]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_loss_and_gradients_are_those_of_one_device(number: int) -> None:
    plan, program = plans()[number]
    place = [other.ranks for other, _ in plans()[:number]].count(plan.ranks)
    loss, gradients = dense_step(plan.model, BATCH, POSITIONS)
    meaning, seen = Meaning(program), set()
    for answers in results(plan.ranks):
        for block, got in answers[place].blocks.items():
            box = meaning.place(block)
            assert box is not None
            name = box.tensor.removesuffix(".grad")
            if name == "loss":
                np.testing.assert_allclose(got, [loss], rtol=1e-9)
            elif block.partition("[")[0].endswith(".grad"):
                whole = gradients[name]
                whole = whole.reshape((1,) * (got.ndim - whole.ndim) + whole.shape)
                right = whole[tuple(slice(*line) for line in box.box)]
                got = got[tuple(slice(size) for size in right.shape)]  # without the padding
                np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12, err_msg=block)
                seen.add(name)
    assert seen == set(gradients)
