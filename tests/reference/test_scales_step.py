"""The scales of a training step: what it states, and wrong ones that every reader refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from oracle.explore import explore
from step_cases import BATCH, POSITIONS, lowered, passed, place, refuted, spoilt

from primepar.reference import check_program
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Compute, Instruction

Spoil = Callable[[int, list[Instruction]], None]
MEAN = f"1/{BATCH * POSITIONS}"
BIAS = "blocks.0.proj.bias.grad[0]"


@pytest.mark.parametrize("plan", ["data", "megatron", "primepar"])
def test_the_loss_and_its_gradient_are_means_over_the_rows_of_the_step(plan: str) -> None:
    program = passed(plan, 4, "gpt2")
    phases = program.phases or {}
    means = {name for name, signature in phases.items() if signature.scale != "1"}
    assert means == {"loss.forward", "loss.backward"}
    assert {phases[name].scale for name in means} == {MEAN}
    nodes = [node for nodes in program.programs for node in nodes if isinstance(node, Compute)]
    assert all(node.scale == (MEAN if node.phase in means else "1") for node in nodes)
    assert not refuted(program)


def added_by_every_rank(rank: int, instructions: list[Instruction]) -> None:
    """Sum a bias gradient over ranks that all have the whole of it."""
    index = place(instructions, "blocks.0.proj.bias.gradient")
    instructions.insert(index + 1, AllReduce((0, 1, 2, 3), block=BIAS))


def of_one_micro_batch(rank: int, instructions: list[Instruction]) -> None:
    """Divide a gradient that is finished once more, by a number of micro-batches."""
    index = place(instructions, f"all_reduce {BIAS}")
    instructions[index] = replace(instructions[index], scale="1/2")


def corrected(rank: int, instructions: list[Instruction]) -> None:
    """Sum a bias gradient that every rank has whole, with the scale that makes it right."""
    index = place(instructions, "blocks.0.proj.bias.gradient")
    instructions.insert(index + 1, AllReduce((0, 1, 2, 3), block=BIAS, scale="1/4"))


@pytest.mark.parametrize(
    ("plan", "spoil", "message", "emulated"),
    [
        pytest.param(
            "megatron", added_by_every_rank,
            f"reads {BIAS} for the gradient.2.squares sub-operator (X=0): expected "
            "blocks.0.proj.bias.gradient product (M=0, K=0) once, got it 4 times: it is added 4 "
            "times, so add it once or write scale 1/4: see rank 0, instruction 86 (all_reduce "
            f"{BIAS} over 0,1,2,3)",
            "device 0, programs[0][86]: expected every term once in a sum, got "
            "blocks.0.proj.bias.gradient M=0 K=0 a second time",
            id="a bias gradient added by every rank",
        ),
        pytest.param(
            "data", of_one_micro_batch,
            f"reads {BIAS} for the gradient.1.squares sub-operator (X=0): expected each "
            "blocks.0.proj.bias.gradient product once, got each 1/2 times: scale 1/2 is applied "
            f"to what needs none, so leave it out: see rank 0, instruction 85 "
            f"(all_reduce 1/2 * {BIAS} over 0,1,2,3)",
            "device 0, programs[0][125], gradient.1.squares: expected "
            f"blocks.0.proj.bias.gradient M=0 K=0 once in {BIAS}, got it 1/2 times: finish the "
            "sum before this instruction",
            id="a gradient divided by the micro-batches once more",
        ),
    ],
)  # fmt: skip
def test_a_wrong_coefficient_is_refuted_by_every_reader(
    plan: str, spoil: Spoil, message: str, emulated: str
) -> None:
    program = spoilt(lowered(plan, 4, "gpt2"), spoil)
    found = refuted(program)
    assert found.keys() == {"completion"}
    assert found["completion"].endswith(message)
    assert explore(program).failed == {"completion"}
    assert check_program(program).message == emulated


def test_a_sum_over_copies_with_the_right_scale_is_proved() -> None:
    program: Program = spoilt(lowered("megatron", 4, "gpt2"), corrected)
    assert not refuted(program)
    assert not explore(program).failed
    assert check_program(program).equal
