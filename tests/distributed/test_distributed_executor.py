"""The executor alone: what it refuses, whose memory it writes, and the memory of blocks."""

from __future__ import annotations

import pytest
import torch

from primepar.distributed import Executor, Mesh, scatter_tensor
from primepar.distributed.kernels import KERNELS
from primepar.distributed.runtime.running import Frame
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import MeshError, ProgramError, SequenceError, ShapeError
from primepar.models import ModelConfig
from primepar.operators import Site, StepInputs, StepSettings
from primepar.operators.single_operator import rectangular
from primepar.partition import parse_sequence
from primepar.schedule import Layout, Linear, lower
from primepar.schedule.program import (
    Alloc,
    AllReduce,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Instruction,
    Join,
    Program,
)
from primepar.schedule.signature import Reduction, Signature, Tensor

PAIR = Tensor(((0, 2),))
TENSORS = dict.fromkeys("abc", PAIR) | {
    "whole": Tensor(((0, 4), (0, 4))),
    "rows": Tensor(((0, 2, 4), (0, 4)), of="whole"),
    "columns": Tensor(((0, 4), (0, 2, 4)), of="whole"),
}
ROWS, COLUMNS = ("rows[0,0]", "rows[1,0]"), ("columns[0,0]", "columns[0,1]")
SETTINGS = StepSettings(
    ModelConfig.of("gpt", layers=1, hidden=4, heads=2, vocabulary=4, context=4), 1, 4
)


def mesh() -> Mesh:
    return Mesh(parse_sequence(""), dtype=torch.float64)


def alone(
    *instructions: Instruction,
    initial: tuple[str, ...] | None = (),
    phases: dict[str, Signature] | None = None,
) -> Program:
    return Program(
        format="primepar-program",
        version=1,
        ranks=1,
        programs=(instructions,),
        initial=None if initial is None else (initial,),
        tensors=TENSORS,
        phases=phases,
    )


def run(program: Program, **blocks: float) -> dict[str, float]:
    given = {f"{name}[0]": torch.full((2,), value).double() for name, value in blocks.items()}
    return {name[0]: block[0].item() for name, block in Executor(mesh(), program)(given).items()}


def refused(program: Program, settings: StepSettings | None = None) -> str:
    with pytest.raises(ProgramError) as error:
        Executor(mesh(), program, settings)
    return str(error.value)


def test_a_block_that_is_not_there_is_refused() -> None:
    assert refused(alone(Compute(("a[0]",), "b[0]"), Free("c[0]"), initial=("a[0]",))) == (
        "programs[0][1]: expected block c[0] on this device, got none: "
        "list it in initial, or receive or compute it first"
    )


def test_a_freed_block_is_not_there() -> None:
    program = alone(Free("a[0]"), Compute(("a[0]",), "b[0]"), initial=("a[0]",))
    assert refused(program) == (
        "programs[0][1]: expected block a[0] on this device, got none: "
        "list it in initial, or receive or compute it first"
    )


def test_without_initial_a_block_is_taken_to_be_where_it_is_first_used() -> None:
    program = alone(Compute(("a[0]", "a[0]"), "b[0]"), initial=None)
    assert run(program, a=3) == {"a": 3, "b": 6}


def test_a_block_that_was_not_evicted_cannot_be_fetched() -> None:
    assert refused(alone(Evict("a[0]"), Fetch("b[0]"), initial=("a[0]", "b[0]"))) == (
        "programs[0][1]: expected block b[0] in host memory, got none: evict it first"
    )


def test_an_evicted_block_is_not_on_the_device() -> None:
    program = alone(Evict("a[0]"), Compute(("a[0]",), "b[0]"), initial=("a[0]",))
    assert refused(program) == (
        "programs[0][1]: expected block a[0] on this device, got none: "
        "list it in initial, or receive or compute it first"
    )


def test_an_evicted_block_comes_back() -> None:
    assert run(alone(Evict("a[0]"), Fetch("a[0]"), initial=("a[0]",)), a=3) == {"a": 3}


def test_a_collective_of_one_rank_changes_nothing() -> None:
    assert run(alone(AllReduce((0,), block="a[0]"), initial=("a[0]",)), a=3) == {"a": 3}


def test_a_program_of_other_ranks_is_refused() -> None:
    with pytest.raises(MeshError) as error:
        Executor(mesh(), lower(parse_sequence("M2"), Linear(M=4, N=6, K=8)))
    assert str(error.value) == ("program: expected one of 1 ranks, got 2: lower it for this mesh")


def test_a_block_without_a_size_is_refused() -> None:
    with pytest.raises(ProgramError) as error:
        Shapes(lower(parse_sequence(""))).shape("I[0,0]")
    assert str(error.value) == (
        "program: expected the size of block I[0,0] to execute it, got none: cut its tensor in "
        "tensors, or lower a linear operator with its shape"
    )


def test_block_shapes_come_from_shape_and_grid() -> None:
    shape = Shapes(lower(parse_sequence("P2x2"), Linear(M=4, N=6, K=8))).shape
    assert [shape("I[0,1]"), shape("W[1,0]"), shape("dO[1,1]'")] == [(2, 3), (3, 4), (2, 4)]


def test_a_missing_block_is_named() -> None:
    with pytest.raises(ProgramError) as error:
        run(alone(initial=("a[0]", "b[0]")), a=1)
    assert str(error.value) == (
        "rank 0: expected 2 blocks before the program, got none named b[0]: give the blocks that "
        "the program lists in initial"
    )


def test_a_block_of_another_shape_is_named() -> None:
    with pytest.raises(ProgramError) as error:
        Executor(mesh(), alone(initial=("a[0]",)))({"a[0]": torch.zeros(3).double()})
    assert str(error.value) == (
        "rank 0: expected block a[0] of shape [2], got [3]: give this rank's part"
    )


# Kernels


def phased(kernel: str | None, reduction: Reduction = "sum") -> Program:
    """One phase of two sub-operators that make one block."""
    signature = Signature(("a[0]",), "b[0]", reduction, kernel)
    products = [Compute(("a[0]",), "b[0]", "x.own", {"R": number}) for number in (0, 1)]
    return alone(*products, initial=("a[0]",), phases={"x.own": signature})


def test_a_phase_without_a_kernel_is_refused() -> None:
    assert refused(phased(None), SETTINGS) == (
        "programs[0][0]: expected a kernel for phase x.own, got none: name one of those of "
        "primepar.distributed.kernels in its signature"
    )
    assert refused(phased("test.other"), SETTINGS).startswith(
        "programs[0][0]: expected a kernel for phase x.own, got 'test.other': "
    )


def test_a_phase_of_a_step_without_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "test.own", _own)
    assert refused(phased("test.own")) == (
        "programs[0][0]: expected the settings of a training step for phase x.own, got none: give "
        "the executor StepSettings"
    )


def test_a_product_of_one_block_is_refused() -> None:
    program = alone(
        Compute(("a[0]",), "b[0]", "x.forward", {"M": 0}),
        initial=("a[0]",),
        phases={"x.forward": Signature(("a[M]", "c[M]"), "b[M]", kernel="linear.forward")},
    )
    assert refused(program) == "programs[0][0]: expected 2 reads for phase x.forward, got 1"


def _own(site: Site, inputs: StepInputs, into: torch.Tensor, block: torch.Tensor) -> None:
    torch.add(block, inputs.number, out=into)


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 8.0), ("max", 4.0), ("min", 4.0)])
def test_what_kernels_make_is_reduced_as_their_phase_defines(
    monkeypatch: pytest.MonkeyPatch, reduction: Reduction, expected: float
) -> None:
    monkeypatch.setitem(KERNELS, "test.own", _own)
    execute = Executor(mesh(), phased("test.own", reduction), SETTINGS)
    given = torch.ones(2).double()
    for _ in range(2):
        blocks = execute({"a[0]": given}, StepInputs(number=3))
        assert blocks["b[0]"].tolist() == [expected] * 2
    assert given.tolist() == [1.0, 1.0]


# Memory


def whole() -> torch.Tensor:
    return torch.arange(16.0, dtype=torch.float64).view(4, 4)


@pytest.mark.parametrize("parts", [ROWS, COLUMNS])
@pytest.mark.parametrize("in_place", [False, True])
def test_parts_are_never_written_through_one_another(
    parts: tuple[str, str], in_place: bool
) -> None:
    """The whole is given; then parts of a sum of it are cut, changed and joined again."""
    one, other = parts
    program = alone(
        Cut("whole[0,0]", parts),
        Compute((one,), one),  # doubled
        Join(parts, "again[0,0]"),
        Compute((other,), other),
        Join(parts, "both[0,0]", in_place),
        Compute(("both[0,0]",), "both[0,0]"),
        initial=("whole[0,0]",),
    )
    tensors = TENSORS | {name: Tensor(((0, 4), (0, 4)), of="whole") for name in ("again", "both")}
    one_device = mesh()
    execute = Executor(one_device, _with(program, tensors))
    for _ in range(2):
        given = whole()
        blocks = execute({"whole[0,0]": given})
        assert torch.equal(given, whole())
        doubled = whole()
        half: tuple[slice, ...] = (slice(2),) if parts == ROWS else (slice(None), slice(2))
        doubled[half] *= 2
        assert torch.equal(blocks["again[0,0]"], doubled)
        assert torch.equal(blocks["both[0,0]"], 4 * whole())
        left = {"whole[0,0]", "again[0,0]", "both[0,0]"}
        assert blocks.keys() == left | (set() if in_place else {*parts})
        if not in_place:
            assert torch.equal(blocks[one], 2 * whole()[half])
        assert len({block.untyped_storage().data_ptr() for block in blocks.values()}) == len(blocks)


def _with(program: Program, tensors: dict[str, Tensor]) -> Program:
    return Program(program.format, 1, 1, program.programs, initial=program.initial, tensors=tensors)


@pytest.mark.parametrize(("parts", "buffers"), [(ROWS, 1), (COLUMNS, 3)])
def test_rows_that_are_joined_are_made_side_by_side(parts: tuple[str, str], buffers: int) -> None:
    """No more is made than the whole, which is new in every run; columns are copied into it."""
    program = alone(*map(Alloc, parts), Join(parts, "whole[0,0]", in_place=True))
    execute = Executor(mesh(), program)
    one, other = (execute({})["whole[0,0]"] for _ in range(2))
    assert len(execute._buffers) == buffers
    assert one.data_ptr() != other.data_ptr()
    assert not any(slot[0] is not None for buffer in execute._buffers for slot, _ in buffer._slots)


def test_a_part_outside_of_its_block_is_refused() -> None:
    assert refused(alone(Alloc("rows[0,0]"), Cut("rows[0,0]", ("columns[0,1]",)))) == (
        "program: expected a part of block rows[0,0], got columns[0,1], which is outside of it"
    )


def test_sums_and_statistics_are_wide_under_half_precision() -> None:
    tensors = TENSORS | {"b": Tensor(((0, 2),), wide=True)}
    program = _with(alone(Alloc("a[0]"), Alloc("b[0]")), tensors)
    blocks = Executor(Mesh(parse_sequence(""), dtype=torch.bfloat16), program)({})
    assert [blocks[name].dtype for name in ("a[0]", "b[0]")] == [torch.bfloat16, torch.float32]


# Layouts


@pytest.mark.parametrize(("blocks", "text"), [(((0, 0), (1, 1)), "(0, 0), (1, 1)"), ((), "none")])
def test_a_layout_without_a_rectangle_of_blocks_on_a_device_is_refused(
    blocks: tuple[tuple[int, int], ...], text: str
) -> None:
    with pytest.raises(SequenceError) as error:
        rectangular(Layout((2, 2), (blocks,)), "I")
    assert str(error.value) == (
        "tensor I: expected on every device a block, or all blocks of some slices of each dim, "
        f"got {text} on device 0: choose another sequence"
    )


def test_a_tensor_that_a_layout_does_not_divide_is_refused() -> None:
    with pytest.raises(ShapeError) as error:
        scatter_tensor(mesh(), Layout((2, 1), (((0, 0),),)), torch.zeros(3, 2))
    assert str(error.value) == (
        "tensor: expected dim 0 to be a multiple of its 2 slices, got 3: pad it to 4"
    )


def test_steps_can_be_measured_one_by_one() -> None:
    """By what they do before each, or run by hand on given blocks."""
    program = alone(
        Compute(("a[0]",), "b[0]"), Alloc("c[0]"), Compute(("b[0]",), "c[0]"), initial=("a[0]",)
    )
    executor, places = Executor(mesh(), program), list[int]()
    nodes = [node for step in executor.steps for node in step.instructions]
    assert nodes == list(program.programs[0])
    executor.precede(lambda place: lambda frame: places.append(place))
    blocks = {"a[0]": torch.full((2,), 3.0).double()}
    assert executor(dict(blocks))["c[0]"].tolist() == [3, 3]
    assert places == [0, 1, 2, 3]  # the last is after the list
    frame = Frame(dict(blocks), StepInputs(), None)
    executor.bind(frame.blocks)
    for step in executor.steps:
        step.run(frame)
    assert frame.blocks["c[0]"].tolist() == [3, 3]
    assert places == 2 * [0, 1, 2, 3]
