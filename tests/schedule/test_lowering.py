"""Lowering: which rank holds what, what overlaps what, and two buffers per moving tensor."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from primepar.errors import ShapeError
from primepar.partition import parse_sequence
from primepar.schedule import Linear, Program, lower
from primepar.schedule.operators import PHASES, parse_block
from primepar.schedule.program import AllReduce, Compute, Free, IRecv, ISend, Wait
from primepar.verify import verify_program

TEXTS = ["", "K", "N3", "M", "B", "P2x2", "P3x3", "P4x4", "K,P2x2", "P2x2,N", "P2x2,P2x2"]


def tensor_of(block: str) -> str:
    """The tensor that a block of a linear operator belongs to."""
    name = parse_block(block)
    assert name is not None
    return name.tensor


def initial(program: Program) -> tuple[tuple[str, ...], ...]:
    """What each rank holds first."""
    assert program.initial is not None
    return program.initial


def final(program: Program) -> tuple[tuple[str, ...], ...]:
    """What each rank must hold in the end."""
    assert program.final is not None
    return program.final


def sent(program: Program) -> list[Counter[str]]:
    """Blocks that each rank sends, per tensor."""
    return [
        Counter(tensor_of(node.block) for node in rank if isinstance(node, ISend))
        for rank in program.programs
    ]


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5])
def test_blocks_sent_per_device_are_the_formula_s(side: int) -> None:
    program = lower(parse_sequence(f"P{side}x{side}"))
    hops = side - 1
    expected = Counter({"I": 2 * hops, "W": 2 * hops + (side > 1), "dO": 2 * hops,
                        "dW": int(side > 1)})  # fmt: skip
    assert all(+counts == +expected for counts in sent(program))


@pytest.mark.parametrize("text", ["K4", "M4", "P2x2", "P3x3", "K2,P2x2", "Os2x2", "S2x2", "D2x2x2"])
def test_a_weight_that_is_spent_makes_one_hop_less_and_is_freed(text: str) -> None:
    """PrimePar's last hop of W receives it back to where forward starts; nobody else has one.

    A weight that is needed must be there: the shorter program with W at its end is refuted.
    """
    sequence = parse_sequence(text)
    kept, spent = lower(sequence), lower(sequence, spends_weight=True)
    returns = "P" in text
    for before, after in zip(sent(kept), sent(spent), strict=True):
        assert before - after == Counter({"W": 1} if returns else {})
        assert not after - before
    assert not any(block.startswith("W[") for blocks in final(spent) for block in blocks)
    for rank, nodes in enumerate(spent.programs):
        freed = Counter(node.block for node in nodes if isinstance(node, Free))
        live = [name for name in initial(spent)[rank] if name.startswith("W[") and not freed[name]]
        assert not live
    assert verify_program(spent, text).verdict == "proved"
    needed = replace(spent, final=kept.final)
    assert verify_program(needed, text).verdict == "refuted"


@pytest.mark.parametrize("text", TEXTS)
def test_transfers_are_posted_before_the_product_that_they_overlap(text: str) -> None:
    for instructions in lower(parse_sequence(text)).programs:
        posted: set[str] = set()
        for node in instructions:
            match node:
                case ISend() | IRecv():
                    posted.add(node.request)
                    fresh = True
                case Compute(phase=phase) if phase:
                    fresh = False
                case Wait(request=request):
                    assert not fresh, "a wait directly after its post overlaps nothing"
                    posted.remove(request)
        assert not posted


@pytest.mark.parametrize("text", ["P1x1", "P2x2", "P3x3", "P4x4", "N,P2x2", "P2x2,P2x2"])
def test_two_buffers_per_moving_operand_and_three_for_a_travelling_sum_are_enough(
    text: str,
) -> None:
    program = lower(parse_sequence(text))
    for rank, instructions in enumerate(program.programs):
        live = set(initial(program)[rank])
        for node in instructions:
            match node:
                case IRecv(block=block) | Compute(accumulates=block):
                    live.add(block)
                case Free(block=block):
                    live.remove(block)
            counts = Counter(tensor_of(block) for block in live)
            assert all(counts[tensor] <= 2 for tensor in ("I", "W", "dO"))
            assert counts["O"] <= 1
            assert counts["dI"] <= 1
            assert counts["dW"] <= 3
        left = sorted(tensor_of(block) for block in live)
        assert left == ["O", "W", "dI", "dW"], "I and dO are given back, nothing else is left"


def test_both_ends_of_a_channel_post_in_one_order() -> None:
    for text in ("P2x2", "P3x3", "K,P2x2", "P2x2,P2x2"):
        program = lower(parse_sequence(text))
        channels: dict[tuple[int, int, str], list[str]] = {}
        for rank, instructions in enumerate(program.programs):
            for node in instructions:
                if isinstance(node, ISend):
                    channels.setdefault((rank, node.peer, "out"), []).append(node.block)
                elif isinstance(node, IRecv):
                    channels.setdefault((node.peer, rank, "in"), []).append(node.block)
        for (source, target, _), blocks in channels.items():
            assert blocks == channels[source, target, "in"] == channels[source, target, "out"]


def test_a_summed_output_ends_with_one_all_reduce_over_its_ranks() -> None:
    program = lower(parse_sequence("N3"), phases=("forward",))
    for instructions in program.programs:
        assert instructions[-1] == AllReduce((0, 1, 2), block="O[0,0]")


@pytest.mark.parametrize("first", range(3))
def test_before_a_phase_all_that_it_or_a_later_one_reads_is_there(first: int) -> None:
    for blocks in initial(lower(parse_sequence("P2x2"), phases=PHASES[first:])):
        assert {tensor_of(block) for block in blocks} == {"I", "W", "dO"}


def test_the_shape_is_written_and_must_divide() -> None:
    program = lower(parse_sequence("P2x2"), Linear(M=4, N=6, K=8))
    assert program.shape == {"M": 4, "N": 6, "K": 8}
    with pytest.raises(ShapeError):
        lower(parse_sequence("P2x2"), Linear(M=4, N=5, K=8))
