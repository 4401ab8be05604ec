"""Homes: what is broadcast, gathered, reduced and kept, and that everything ends at home."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from family import FAMILY, MIXED, member
from profiles import few

from primepar.partition import parse_sequence
from primepar.schedule import Movement, Program, Sequence, lower
from primepar.schedule.lowering import layout
from primepar.schedule.operators import PHASES, PRODUCTS, Phase, parse_block
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    Broadcast,
    Collective,
    Compute,
    Free,
    IRecv,
    ISend,
    Reduce,
    ReduceScatter,
    Wait,
)
from primepar.verify.program import verify_program
from primepar.verify.report import PROPERTIES

HOMES = [case for case in FAMILY if member(*case).has_homes and member(*case).ranks > 1]
OPERANDS = ("I", "W", "dO")


def tensor_of(block: str) -> str:
    parsed = parse_block(block)
    assert parsed is not None
    return parsed.tensor


def carried(program: Program) -> Counter[tuple[str, str]]:
    """(instruction, tensor) -> how many instructions over all ranks carry it."""
    counts: Counter[tuple[str, str]] = Counter()
    for node in (node for rank in program.programs for node in rank):
        if isinstance(node, Collective | ISend | IRecv):
            block = getattr(node, "block", "")
            counts[str(node.__struct_config__.tag), tensor_of(block)] += 1
    return counts


def kinds(text: str) -> dict[str, set[str]]:
    """Phase -> what carries which tensor, `all_gather I`."""
    return {
        phase: {
            f"{op} {tensor}" for op, tensor in carried(lower(parse_sequence(text), phases=(phase,)))
        }
        for phase in PHASES
    }


# Which instructions move what


@pytest.mark.parametrize(
    ("text", "forward", "backward", "gradient"),
    [
        ("Ks3", "all_gather I", "reduce_scatter dI", "all_gather I"),
        ("Ns3", "reduce_scatter O", "all_gather dO", "all_gather dO"),
        ("S3x3", "broadcast I, broadcast W", "broadcast W, reduce dI", "broadcast I, reduce dW"),
        ("S2x3", "all_gather I, isend W", "isend W, reduce_scatter dI",
         "all_gather I, reduce_scatter dW"),
        ("S4x2", "isend I, broadcast W", "broadcast W, isend dI", "isend I, reduce dW"),
        ("S4x6", "broadcast I, broadcast W", "broadcast W, reduce dI", "broadcast I, reduce dW"),
        ("T3x3x1", "broadcast I, broadcast W", "broadcast W, reduce dI", "broadcast I, reduce dW"),
        ("T3x3x2", "broadcast I, broadcast W", "broadcast W, reduce dI",
         "broadcast I, reduce dW, all_reduce dW"),
        ("Cr3x3x3", "all_gather I, all_gather W, reduce_scatter O", "all_gather dO, all_gather W, "
         "reduce_scatter dI", "all_gather dO, all_gather I, reduce_scatter dW"),
        ("C3x3x3", "all_gather I, all_gather W, reduce_scatter O",
         "all_gather dO, reduce_scatter dI", "all_gather dO, reduce_scatter dW"),
        ("Os3x3", "isend I, isend W", "isend W, isend dI", "isend I, isend dW"),
        ("Is3x3", "isend W, isend O", "isend W, isend dO", "isend dO, isend dW"),
        ("Ws3x3", "isend I, isend O", "isend dO, isend dI", "isend I, isend dO"),
    ],
)  # fmt: skip
def test_each_phase_alone_moves_what_its_method_defines(
    text: str, forward: str, backward: str, gradient: str
) -> None:
    instructions = {
        phase: {kind for kind in kinds if not kind.startswith("irecv")}
        for phase, kinds in kinds(text).items()
    }
    expected = {"forward": forward, "backward": backward, "gradient": gradient}
    assert instructions == {phase: set(names.split(", ")) for phase, names in expected.items()}


@pytest.mark.parametrize("text", ["Ks2", "Ns2", "S2x2", "C2x2x2", "M2,Ks2"])
def test_a_group_of_two_exchanges_messages(text: str) -> None:
    operations = {op for op, _ in carried(lower(parse_sequence(text)))}
    assert operations <= {"isend", "irecv", "reduce_scatter", "all_reduce"}


@pytest.mark.parametrize(("name", "sides"), HOMES)
def test_what_sends_operands_is_posted_and_what_finishes_a_sum_is_not(
    name: str, sides: tuple[int, ...]
) -> None:
    for node in (node for rank in lower(member(name, sides)).programs for node in rank):
        if isinstance(node, AllGather | Broadcast):
            assert node.request is not None
        elif isinstance(node, AllReduce | Reduce | ReduceScatter):
            assert node.request is None


@pytest.mark.parametrize("text", ["S3x3", "S4x4", "S6x3", "T3x3x2", "Os3x3", "Is3x3", "Ws3x3"])
def test_operands_of_a_later_step_travel_while_this_one_multiplies(text: str) -> None:
    for instructions in lower(parse_sequence(text)).programs:
        flying: dict[str, bool] = {}
        for node in instructions:
            if isinstance(node, ISend | IRecv | Broadcast) and node.request:
                flying[node.request] = tensor_of(node.block) not in OPERANDS
            elif isinstance(node, Compute) and node.phase:
                flying = dict.fromkeys(flying, True)
            elif isinstance(node, Wait):
                multiplied = flying.pop(node.request)
                assert multiplied or node.request[1] == "*", "only what opens a phase is waited for"


# Sums end at home, and only there


@few
@pytest.mark.parametrize(("name", "sides"), HOMES)
def test_every_output_ends_at_home_and_only_there(name: str, sides: tuple[int, ...]) -> None:
    sequence = member(name, sides)
    movement, program = Movement(sequence), lower(sequence)
    for rank, blocks in enumerate(program.final or ()):
        ends = Counter(tensor_of(block) for block in blocks)
        homes = {tensor: len(movement.home(tensor)[rank]) for tensor in ("O", "W", "dI", "dW")}
        assert ends == homes
        assert left(program, rank) == set(blocks)


def left(program: Program, rank: int) -> set[str]:
    """Blocks that a rank holds after its last instruction."""
    live = set((program.initial or ())[rank])
    for node in program.programs[rank]:
        match node:
            case Compute(accumulates=block) | IRecv(block=block) | Alloc(block=block):
                live.add(block)
            case Broadcast(block=block) | ReduceScatter(block=block):
                live.add(block)
            case AllGather(blocks=blocks):
                live.update(blocks)
            case Free(block=block):
                live.remove(block)
    return live


@pytest.mark.parametrize("text", ["Os", "Is", "Ws"])
@pytest.mark.parametrize("side", [2, 3, 4])
def test_travelling_sums_make_one_hop_a_step_and_a_last_one_home(text: str, side: int) -> None:
    """An output that rotates is passed on after every step; its last hop returns it to its home."""
    movement = Movement(parse_sequence(f"{text}{side}x{side}"))
    stays = {"Os": "O", "Is": "I", "Ws": "W"}[text]
    for phase, product in PRODUCTS.items():
        tensor, moved = product.writes, movement.phases[phase]
        hops = [len(step) for step in moved.partials]
        ways = [sum(total.homes != total.ranks for total in step) for step in moved.returns]
        if tensor.removeprefix("d") == stays:
            assert (sum(hops), sum(ways)) == (0, 0)
        else:
            assert hops[0] == 0
            assert sum(hops) + sum(ways) == (side - 1) * side**2
        assert movement.end(phase, tensor) == movement.home(tensor)


def test_a_stationary_tensor_and_its_gradient_are_never_sent() -> None:
    for text, tensor in (("Os3x3", "O"), ("Is3x3", "I"), ("Ws3x3", "W")):
        sent = {name for _, name in carried(lower(parse_sequence(text)))}
        assert sent == {"I", "W", "O", "dI", "dW", "dO"} - {
            tensor,
            f"d{tensor}",
            *({"O"} if text.startswith("Os") else ()),
        } - ({"dO"} if text.startswith("Os") else set())


def test_an_operator_that_keeps_o_and_one_that_keeps_i_need_no_redistribution_between() -> None:
    for side in (2, 3, 4):
        first = Movement(parse_sequence(f"Os{side}x{side}"))
        second = Movement(parse_sequence(f"Is{side}x{side}"))
        assert first.home("O") == second.home("I")
        assert first.home("I") == second.home("O")


def test_the_output_of_three_d_has_the_home_of_the_input_of_the_exchanged_one() -> None:
    for side in (2, 3):
        first = Movement(parse_sequence(f"C{side}x{side}x{side}"))
        second = Movement(parse_sequence(f"D{side}x{side}x{side}"))
        for one, other in ((first, second), (second, first)):
            ends, starts = (
                layout(one, "forward", "O", last=True),
                layout(other, "forward", "I", last=False),
            )
            assert ends.coarsest() == starts.coarsest()


# One sweep for the shared dO, and kept copies


@pytest.mark.parametrize(
    ("text", "shares"),
    [("Ns3", True), ("C2x2x2", True), ("Cr2x2x2", True), ("Is3x3", True), ("Ws3x3", True),
     ("Ks3", False), ("S3x3", False), ("S2x3", False), ("Os3x3", False), ("P3x3", False),
     ("N3", False)],
)  # fmt: skip
def test_backward_and_gradient_share_the_way_of_dO(text: str, shares: bool) -> None:
    sequence = parse_sequence(text)
    assert Movement(sequence).shares_output_gradient is shares
    apart = sum(
        (carried(lower(sequence, phases=(phase,))) for phase in ("backward", "gradient")),
        Counter[tuple[str, str]](),
    )
    together = carried(lower(sequence, phases=("backward", "gradient")))
    moved = {key: count for key, count in apart.items() if key[1] == "dO"}
    halved = {key: count // 2 for key, count in moved.items()} if shares else moved
    assert {key: count for key, count in together.items() if key[1] == "dO"} == halved
    assert {key: count for key, count in together.items() if key[1] != "dO"} == {
        key: count for key, count in apart.items() if key[1] != "dO"
    }


def test_three_d_keeps_what_forward_has_gathered_and_the_other_variant_gathers_again() -> None:
    kept, again = (lower(parse_sequence(text), phases=PHASES) for text in ("C3x3x3", "Cr3x3x3"))
    gathers = {op: count for op, count in carried(kept).items() if op[0] == "all_gather"}
    twice = {op: count for op, count in carried(again).items() if op[0] == "all_gather"}
    assert {
        name: twice["all_gather", name] / gathers["all_gather", name] for _, name in gathers
    } == {
        "I": 2,
        "W": 2,
        "dO": 1,
    }
    for program, more in ((kept, 2), (again, 0)):
        forward = lower(parse_sequence("C3x3x3" if more else "Cr3x3x3"), phases=("forward",))
        counts = Counter(tensor_of(block) for block in (forward.final or ())[0])
        assert counts == {"O": 3, "I": 1 + more, "W": 1 + more}
        assert len(program.programs) == 27


@few
@pytest.mark.parametrize(
    "sequence",
    [*(member(*case) for case in HOMES), *map(parse_sequence, ("P2x2", "P3x3", "K,P2x2", "N"))],
    ids=str,
)
def test_phases_lowered_apart_meet_where_they_join(sequence: Sequence) -> None:
    forward = lower(sequence, phases=("forward",))
    rest = lower(sequence, phases=("backward", "gradient"))
    whole = lower(sequence)
    for rank in range(sequence.ranks):
        assert forward.programs[rank] + rest.programs[rank] == whole.programs[rank]
    for one, other in pairwise((forward, rest)):
        for ended, given in zip(one.final or (), other.initial or (), strict=True):
            assert {block for block in ended if tensor_of(block) != "O"} == {
                block for block in given if tensor_of(block) != "dO"
            }


# Proofs


@few
@pytest.mark.parametrize(("name", "sides"), [case for case in HOMES if member(*case).ranks <= 27])
def test_every_member_of_the_family_is_proved_in_all_six_properties(
    name: str, sides: tuple[int, ...]
) -> None:
    report = verify_program(lower(member(name, sides)))
    assert report.verdict == "proved"
    assert {result.name for result in report.properties} == set(PROPERTIES[:6])


@few
@pytest.mark.parametrize("phases", [("forward",), ("backward",), ("gradient",), PHASES[1:]])
@pytest.mark.parametrize("text", ["Ks3", "S2x2", "T2x2x2", "C2x2x2", "Cr2x2x2", "Is2x2", *MIXED])
def test_phases_are_proved_alone(text: str, phases: tuple[Phase, ...]) -> None:
    assert verify_program(lower(parse_sequence(text), phases=phases)).verdict == "proved"


def test_mixed_sequences_with_homes_return_every_tensor_to_its_home() -> None:
    for text in MIXED:
        sequence = parse_sequence(text)
        movement = Movement(sequence)
        for phase, product in PRODUCTS.items():
            assert movement.end(phase, product.writes) == movement.home(product.writes), text


def test_a_primitive_without_homes_in_a_sequence_with_them_stays_where_forward_has_it() -> None:
    sequence: Sequence = parse_sequence("K2,Ks2")
    assert [sequence.home("I", rank) for rank in range(4)] == [((0, 0),), ((1, 0),)] * 2
    assert [sequence.home("W", rank) for rank in range(4)] == [((0, k),) for k in range(4)]
