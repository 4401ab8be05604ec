"""Kernels of several phases at once write what the kernels of the phases write one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from conform_cases import blocks_of, executor_of
from msgspec.structs import replace
from step_cases import lowered

from primepar.distributed import Executor
from primepar.distributed.kernels.joint import JOINT, Joint
from primepar.distributed.runtime import joint_computes
from primepar.models.dropout import Draw
from primepar.operators import StepInputs
from primepar.schedule.program import Compute, Free, Instruction, Program

INPUTS = StepInputs(Draw(0, 1), 1e-3, 1)


def together(executor: Executor) -> list[tuple[Instruction, ...]]:
    """The computes that one kernel does."""
    return [step.instructions for step in executor.steps if len(step.instructions) > 1]


def run_of(program: Program) -> Executor:
    return executor_of(program, "gpt2", None, "P1x1")


def kept(program: Program) -> Program:
    """The program without the ends of what norms write, so that a run returns these blocks."""
    nodes = tuple(
        node
        for node in program.programs[0]
        if not (isinstance(node, Free) and any(part in node.block for part in ("norm", "grad")))
    )
    return replace(program, programs=(nodes,))


def test_norms_of_whole_rows_are_one_call_forward_and_one_backward() -> None:
    program = lowered("data", 1, "gpt2")
    norms = sum(".normalize" in str(getattr(node, "phase", "")) for node in program.programs[0])
    sizes = [len(nodes) for nodes in together(run_of(program))]
    assert norms == 3
    assert (sizes.count(3), sizes.count(4)) == (2, 3)  # the last one's input ends in between


def test_all_blocks_are_those_of_one_call_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    program = kept(lowered("data", 1, "gpt2"))
    joint = run_of(program)
    got = joint(blocks_of(joint), INPUTS)
    assert {len(nodes) for nodes in together(joint)} == {3}  # the sums are read by the caller
    monkeypatch.setattr(joint_computes, "JOINT", ())
    single = run_of(program)
    expected = single(blocks_of(single), INPUTS)
    assert together(single) == []
    assert got.keys() == expected.keys()
    for name, block in expected.items():
        torch.testing.assert_close(got[name], block, rtol=1e-9, atol=1e-9)


def test_parameters_after_a_step_are_those_of_one_call_for_each_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = lowered("data", 1, "gpt2")
    joint = run_of(program)
    assert {len(nodes) for nodes in together(joint)} == {3, 4}
    got = joint(blocks_of(joint), INPUTS)
    monkeypatch.setattr(joint_computes, "JOINT", ())
    single = run_of(program)
    for name, block in single(blocks_of(single), INPUTS).items():
        torch.testing.assert_close(got[name], block, rtol=1e-9, atol=1e-9)


def test_a_joint_kernel_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the two tests above compare what the joint kernels write."""
    program = lowered("data", 1, "gpt2")
    expected = (executor := run_of(program))(blocks_of(executor), INPUTS)

    def wrong(joint: Joint) -> Joint:
        def run(site: object, intos: Sequence[torch.Tensor], *blocks: torch.Tensor) -> None:
            joint.run(site, intos, *blocks)
            intos[0].mul_(2)

        return Joint(joint.kernels, joint.reads, run, joint.left_out)

    for joint in JOINT:
        monkeypatch.setattr(joint_computes, "JOINT", (wrong(joint),))
        got = (executor := run_of(program))(blocks_of(executor), INPUTS)
        with pytest.raises(AssertionError):
            for name, block in expected.items():
                torch.testing.assert_close(got[name], block, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("joint", JOINT)
def test_phases_of_other_blocks_are_not_joined(joint: Joint) -> None:
    """Each read of each phase is given another name, which breaks what depends on what."""
    writes = [f"made{place}" for place in range(len(joint.kernels))]
    reads = [[writes[m] if isinstance(m, int) else m for m in marks] for marks in joint.reads]
    assert joint.given(reads, writes) is not None
    marks = [mark for phase in joint.reads for mark in phase]
    for place, phase in enumerate(joint.reads):
        for position, mark in enumerate(phase):
            changed = [list(names) for names in reads]
            changed[place][position] = "other"
            # A block that is read once only may be any block.
            free = isinstance(mark, str) and marks.count(mark) == 1
            assert (joint.given(changed, writes) is None) is not free


def test_what_is_scaled_or_added_to_is_not_joined() -> None:
    program = lowered("data", 1, "gpt2")
    (nodes,) = program.programs
    count = len(together(run_of(program)))
    first = next(
        place
        for place, node in enumerate(nodes)
        if isinstance(node, Compute) and str(node.phase).endswith(".moments")
    )
    before, after = nodes[:first], nodes[first + 2 :]
    moments, normalize = nodes[first : first + 2]
    assert isinstance(normalize, Compute)
    scaled = (*before, moments, replace(normalize, scale="1/2"), *after)
    twice = (*before, moments, moments, normalize, *after)
    for changed in (scaled, twice):
        executor = run_of(replace(program, programs=(changed,)))
        assert len(together(executor)) == count - 1
