"""Emulated devices compute what one device computes, exactly, and send what the formula gives."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from agreement import refuted
from family import FAMILY, MIXED, member
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from profiles import few

from primepar import Primitive
from primepar.errors import DeadlockError, MissingBlockError, ShapeError
from primepar.partition import PRIMITIVES, ByInput, parse_sequence
from primepar.reference import EmulatedLinear, check, check_program, emulate, emulated_step
from primepar.reference.check import formula
from primepar.reference.oracle.linear import linear_step
from primepar.schedule import Linear, Sequence, lower
from primepar.schedule.operators import DIMS
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.program import AllReduce, Compute, Cut, Program, ReduceScatter
from primepar.schedule.signature import Signature, Tensor
from primepar.verify.program import verify_program

BEFORE = (
    "", "K,P2x2", "N,P2x2", "M,P2x2", "B,P2x2", "P2x2,N", "P2x2,M", "P2x2,B", "P2x2,P2x2",
    "P2x2,P3x3", "M,K", "K,N", "B,M,N,K", "K3,P2x2", "N,N", "N3,M2,K2", "K,P2x2,N",
)  # fmt: skip


# One device and many


@pytest.mark.parametrize(("name", "sides"), FAMILY)
def test_every_primitive_equals_one_device_and_its_formula(
    name: str, sides: tuple[int, ...]
) -> None:
    report = check(member(name, sides))
    assert report.message is None
    assert report.outputs == {"O": True, "dI": True, "dW": True}
    assert set(report.sent) == {report.formula}
    assert report.equal


@few
@pytest.mark.parametrize(("name", "sides"), [case for case in FAMILY if max(case[1]) == 2])
@pytest.mark.parametrize("factors", [(1, 1, 1), (1, 2, 3), (3, 1, 2)])
def test_the_formula_holds_for_every_shape(
    name: str, sides: tuple[int, ...], factors: tuple[int, int, int]
) -> None:
    sequence = member(name, sides)
    M, N, K = (factor * sequence.grid[dim] for factor, dim in zip(factors, DIMS[1:], strict=True))
    report = check(sequence, Linear(M, N, K, B=sequence.grid.get("B", 1)))
    assert report.message is None
    assert report.equal


@few
@pytest.mark.parametrize("text", [*BEFORE, *MIXED])
def test_every_sequence_equals_one_device(text: str) -> None:
    report = check(parse_sequence(text))
    assert report.message is None
    assert report.outputs == {"O": True, "dI": True, "dW": True}


@settings(max_examples=20)
@given(
    text=st.lists(
        st.sampled_from(["B2", "M2", "N3", "K2", "P2x2", "M3", "Ks2", "Ns3", "S2x2", "Is2x2"]),
        max_size=2,
    ),
    factors=st.tuples(*[st.integers(1, 3)] * 4),
    seed=st.integers(0, 99),
)
def test_every_shape_that_the_grid_divides_is_equal(
    text: list[str], factors: tuple[int, ...], seed: int
) -> None:
    sequence = parse_sequence(",".join(text))
    sizes = dict(zip(DIMS, factors, strict=True))
    shape = {dim: sizes[dim] * count for dim, count in sequence.grid.items()}
    report = check(sequence, Linear(**shape), seed)
    assert report.message is None
    assert report.outputs == {"O": True, "dI": True, "dW": True}


def test_the_oracle_is_the_sum_over_the_shared_dim() -> None:
    rng = np.random.default_rng(0)
    I_MN, W_NK, dO_MK = (rng.integers(-4, 5, shape) for shape in ((2, 3), (3, 4), (2, 4)))
    step = linear_step(I_MN, W_NK, dO_MK)
    assert step.O[1, 2] == sum(I_MN[1, n] * W_NK[n, 2] for n in range(3))
    assert step.dI[1, 2] == sum(dO_MK[1, k] * W_NK[2, k] for k in range(4))
    assert step.dW[2, 3] == sum(I_MN[m, 2] * dO_MK[m, 3] for m in range(2))


def test_the_oracle_sums_the_weight_gradient_over_the_batch() -> None:
    rng = np.random.default_rng(0)
    I_BMN, W_NK, dO_BMK = (rng.integers(-4, 5, shape) for shape in ((2, 2, 3), (3, 4), (2, 2, 4)))
    merged = linear_step(I_BMN.reshape(4, 3), W_NK, dO_BMK.reshape(4, 4))
    batched = linear_step(I_BMN, W_NK, dO_BMK)
    assert np.array_equal(batched.O.reshape(4, 4), merged.O)
    assert np.array_equal(batched.dI.reshape(4, 3), merged.dI)
    assert np.array_equal(batched.dW, merged.dW)


def test_a_shape_that_the_side_does_not_divide_names_the_padded_size() -> None:
    with pytest.raises(ShapeError) as caught:
        check(parse_sequence("P3x3"), Linear(M=9, N=7, K=9))
    assert str(caught.value) == (
        "dim N: expected a positive multiple of its 3 slices, got 7: pad N with zeros to 9"
    )


# Traffic


def test_a_ring_all_reduce_that_does_not_divide_is_counted_as_a_fraction() -> None:
    sequence = parse_sequence("N3")
    assert formula(sequence, Linear(M=2, N=3, K=2)) == Fraction(16, 3)
    assert check(sequence, Linear(M=2, N=3, K=2)).equal


def test_a_sequence_of_several_primitives_has_no_formula() -> None:
    assert check(parse_sequence("K,P2x2")).formula is None


def test_a_primitive_that_does_not_send_its_formula_is_unequal() -> None:
    class Boaster(ByInput):
        def sent(self, M: int, N: int, K: int, d: int) -> Fraction:
            return Fraction(1)

    report = check(Sequence.of(Boaster(), 2))
    assert not report.equal
    assert report.outputs == {"O": True, "dI": True, "dW": True}
    assert report.message == "expected 1 elements to leave each device, got 4 from device 0"


@pytest.mark.parametrize("side", [2, 3, 4])
def test_primepar_holds_one_block_of_each_tensor_and_one_more_of_two_that_move(side: int) -> None:
    elements = 2 * 2
    assert set(check(Sequence.of(PRIMITIVES["primepar"](), side)).peak) == {(6 + 2) * elements}


# Wrong maps and programs


class Wanderer(Primitive):
    """Its dW ends where its W does not start."""

    axes = ("d",)

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(N=d)

    def gradient(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(N=(d + 1) % s)


class Lacking(Primitive):
    """Its second step needs blocks that no device has at the first."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=t, K=c)


def test_a_tensor_that_ends_elsewhere_is_named_with_method_and_device() -> None:
    report = check(Sequence.of(Wanderer(), 2))
    assert not report.equal
    assert report.message == (
        "Wanderer2, device 0 (d=0): expected dW[0,0] in its memory at the end, got it on device 1"
    )


def test_a_block_that_is_nowhere_is_named_with_phase_and_step() -> None:
    report = check(Sequence.of(Lacking(), 2))
    assert not report.equal
    assert report.message == (
        "Lacking2x2, device 0 (r=0, c=0), programs[0][3], forward, t=1: expected I[0,1] in this "
        "device's memory, got O[0,0], dO[0,0]: receive or compute it before this instruction"
    )


def test_a_deadlock_names_the_method() -> None:
    sequence = parse_sequence("N2")
    program = lower(sequence, Linear(M=2, N=2, K=2), ("forward",))
    broken = msgspec.structs.replace(program, programs=(program.programs[0], ()))
    memories = [{name: np.ones((2, 1)) for name in names} for names in program.initial or ()]
    memories[0]["W[0,0]"] = np.ones((1, 2))
    with pytest.raises(DeadlockError) as caught:
        emulate(broken, memories, sequence)
    assert str(caught.value) == (
        "N2: expected every device to end, got 1 that wait without end: device 0 at programs[0][1] "
        "waits for device 1 to call all_reduce over 0,1 reduction=sum; device 1 has finished"
    )


def test_a_program_with_a_grid_is_compared_with_one_device() -> None:
    report = check_program(lower(parse_sequence("P2x2")), "mine.json")
    assert report.equal
    assert (report.target, report.ranks) == ("mine.json", 4)
    assert report.shape == {"M": 4, "N": 4, "K": 4}
    assert report.outputs == {"O": True, "dI": True, "dW": True}
    assert report.sent == (32, 32, 32, 32)


def test_a_program_without_a_grid_is_run() -> None:
    barrier = (AllReduce((0, 1), block="x"),) * 2
    report = check_program(Program("primepar-program", 1, 2, (barrier, barrier)))
    assert report.equal
    assert (report.shape, report.outputs, report.sent) == ({}, {}, (4, 4))


def test_a_program_that_lacks_its_reduction_is_unequal() -> None:
    program = lower(parse_sequence("N2"), phases=("forward",))
    programs = tuple(nodes[:-1] for nodes in program.programs)
    report = check_program(msgspec.structs.replace(program, programs=programs))
    assert not report.equal
    assert report.message == (
        "device 0: at the end expected the 2 terms of O[0,0], got it without forward M=0 N=1 K=0"
    )


def test_two_phases_that_cut_a_dim_differently_are_refused() -> None:
    grid = {"forward": {"M": 1, "N": 2, "K": 1}, "gradient": {"M": 1, "N": 3, "K": 1}}
    with pytest.raises(ValueError) as caught:
        Program("primepar-program", 1, 1, ((),), grid=grid)
    assert str(caught.value) == (
        "expected 2 slices of N in grid.gradient as in grid.forward, got 3: "
        "a block must mean the same data in every phase"
    )


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ({}, "expected cuts of x, which a is, got none"),
        ({"x": Tensor(((0, 5),), "y"), "y": Tensor(((0, 5),))},
         "expected cuts of x, which a is, got those of a tensor that is y"),
        ({"x": Tensor(((0, 2, 4),))}, "expected cuts of a that end at [4] as those of x do, "
         "got [5]: both are one tensor"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_no_other_one_is_refused(whole: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Program("primepar-program", 1, 1, ((),), tensors={**whole, "a": Tensor(((0, 5),), "x")})
    assert str(caught.value) == message


def test_an_output_is_lost_where_only_some_of_its_parts_end() -> None:
    """Each rank cuts its partial sum; of the whole sum rank 1 lists its half, and rank 0 none."""
    own = ("y.own[0]", "y.own[1]")
    programs = tuple(
        (Compute((f"x[{rank}]",), "y[0]", "f", {"N": rank, "M": 0}), Cut("y[0]", own),
         ReduceScatter((0, 1), blocks=own, block=own[rank]))
        for rank in range(2)
    )  # fmt: skip
    tensors = {"y": Tensor(((0, 4),)), "y.own": Tensor(((0, 2, 4),), "y")}
    program = Program(
        "primepar-program", 1, 2, programs, grid={"f": {"N": 2, "M": 1}}, tensors=tensors,
        phases={"f": Signature(("x[N]",), "y[M]")}, initial=(("x[0]",), ("x[1]",)),
        final=((), ("y.own[1]",)),
    )  # fmt: skip
    report, proof = check_program(program), verify_program(program)
    lost = "in final on some device, or read when it is finished, got neither"
    assert report.message == f"expected y[0] {lost}"
    assert refuted(proof) == {"completion"}
    both = replace(program, final=(("y.own[0]",), ("y.own[1]",)))
    assert check_program(both).equal
    assert verify_program(both).verdict == "proved"


@pytest.mark.parametrize(("first", "second"), [("p", "q"), ("q", "p")])
def test_two_phases_that_write_one_tensor_are_refused(first: str, second: str) -> None:
    read = {"p": "x[M]", "q": "u[M]"}
    phases = {name: Signature((read[name],), "y[M]") for name in (first, second)}
    with pytest.raises(ValueError) as caught:
        Program("primepar-program", 1, 1, ((),), phases=phases)
    assert str(caught.value) == (
        f"expected one phase that writes y, got {first} and {second}: give each a tensor of its "
        "own, and a phase that adds them"
    )


def test_a_report_is_json() -> None:
    report = check(parse_sequence("P2x2"))
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


# One operator, forward before its gradient is known


def test_the_blocks_stay_on_the_devices_between_forward_and_backward() -> None:
    rng = np.random.default_rng(1)
    I_MN, W_NK, dO_MK = (rng.normal(size=shape) for shape in ((4, 6), (6, 8), (4, 8)))
    step = emulated_step(parse_sequence("P2x2"), Linear(M=4, N=6, K=8), I_MN, W_NK, dO_MK)
    dense = linear_step(I_MN, W_NK, dO_MK)
    assert all(np.allclose(*pair, rtol=1e-13) for pair in zip(step, dense, strict=True))


@few
@pytest.mark.parametrize("text", ["Ks3", "Ns2", "S3x3", "T2x2x2", "C2x2x2", "Cr2x2x2", *MIXED])
def test_resident_and_kept_blocks_serve_a_later_backward(text: str) -> None:
    rng = np.random.default_rng(1)
    sequence = parse_sequence(text)
    M, N, K = (2 * sequence.grid[dim] for dim in DIMS[1:])
    batch = (sequence.grid["B"],) if "B" in sequence.grid else ()
    shapes = ((*batch, M, N), (N, K), (*batch, M, K))
    dense = [rng.integers(-4, 5, shape).astype(np.float64) for shape in shapes]
    step = emulated_step(sequence, Linear(M, N, K, *batch), *dense)
    assert all(np.array_equal(*pair) for pair in zip(step, linear_step(*dense), strict=True))


def test_backward_before_forward_is_refused() -> None:
    linear = EmulatedLinear(parse_sequence("P2x2"), Linear(M=2, N=2, K=2))
    with pytest.raises(MissingBlockError) as caught:
        linear.backward(np.ones((2, 2)))
    assert str(caught.value) == "memories[0]: expected an array for I[0,1], got none"


def test_a_tensor_of_another_shape_is_refused() -> None:
    linear = EmulatedLinear(parse_sequence("P2x2"), Linear(M=2, N=2, K=2))
    with pytest.raises(ShapeError) as caught:
        linear.forward(np.ones((2, 2)), np.ones((2, 4)))
    assert str(caught.value) == "W: expected shape (2, 2) (N, K), got (2, 4)"
