"""Movement is derived from the map; for PrimePar it is the paper's Table 1, entry by entry."""

from __future__ import annotations

import pytest

from primepar.partition import ByBatch, ByInput, ByOutput, BySequence, PrimePar, parse_sequence
from primepar.schedule import Movement, Primitive, Sequence
from primepar.schedule.movement import Hop
from primepar.schedule.operators import PRODUCTS, Phase

SIDES = (2, 3, 4, 5, 8)

# Table 1 of PrimePar: (phase, t counted from the end) -> {tensor: sender as an offset of (r, c)}.
# -1 is the last step, -2 the one before; `...` stands for every earlier step.
TABLE_1: dict[tuple[Phase, object], dict[str, tuple[int, int]]] = {
    ("forward", ...): {"I": (0, 1), "W": (1, 0)},
    ("forward", -2): {"I": (0, 1), "W": (1, 0)},
    ("forward", -1): {},
    ("backward", ...): {"dO": (0, 1), "W": (-1, 1)},
    ("backward", -2): {"dO": (0, 1), "W": (-1, 1)},
    ("backward", -1): {"W": (0, 1)},
    ("gradient", ...): {"I": (1, -1), "dO": (1, 0)},
    ("gradient", -2): {"I": (1, 0), "dO": (1, 1)},
    ("gradient", -1): {"dW": (0, 1)},
}


def offsets(sequence: Sequence, hops: tuple[Hop, ...]) -> dict[str, set[tuple[int, ...]]]:
    """Tensor -> offsets of the senders of these hops."""
    offsets_of: dict[str, set[tuple[int, ...]]] = {}
    for hop in hops:
        source, target = sequence.coordinates[hop.source], sequence.coordinates[hop.target]
        pairs = zip(source, target, sequence.axis_lengths, strict=True)
        offset = tuple((there - here) % length for there, here, length in pairs)
        offsets_of.setdefault(hop.tensor, set()).add(offset)
    return offsets_of


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("phase", ["forward", "backward", "gradient"])
def test_derived_shifts_are_table_1(side: int, phase: Phase) -> None:
    sequence = Sequence.of(PrimePar(), side)
    moved = Movement(sequence).phases[phase]
    for step in range(side):
        from_end = step - side
        row = TABLE_1[phase, from_end if from_end >= -2 else ...]
        expected = {tensor: {(dr % side, dc % side)} for tensor, (dr, dc) in row.items()}
        hops = (*moved.operands[step], *moved.partials[step])
        assert offsets(sequence, hops) == expected
        assert len(hops) == len(row) * side**2


@pytest.mark.parametrize("side", SIDES)
def test_primepar_never_replicates_and_never_reduces(side: int) -> None:
    movement = Movement(Sequence.of(PrimePar(), side))
    for phase, moved in movement.phases.items():
        assert moved.reductions == ()
        for tensor in ("I", "W", "dO"):
            if tensor in PRODUCTS[phase].reads:
                for step in range(side):
                    held = movement.held(phase, tensor, step)
                    assert len(frozenset().union(*held)) == side**2


@pytest.mark.parametrize(
    ("primitive", "phase", "tensor"),
    [
        (ByBatch(), "gradient", "dW"),
        (BySequence(), "gradient", "dW"),
        (ByInput(), "forward", "O"),
        (ByOutput(), "backward", "dI"),
    ],
)
def test_splitting_a_summed_dim_reduces_that_output_and_no_other(
    primitive: Primitive, phase: Phase, tensor: str
) -> None:
    for moving, moved in Movement(Sequence.of(primitive, 3)).phases.items():
        reduced = {(reduction.tensor, reduction.ranks) for reduction in moved.reductions}
        assert reduced == ({(tensor, (0, 1, 2))} if moving == phase else set())
        assert moved.operands == moved.partials == ((),)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("N,P2x2", {"forward": 2}),
        ("K,P2x2", {"backward": 2}),
        ("M,P2x2", {"gradient": 2}),
        ("B,P2x2", {"gradient": 2}),
    ],
)
def test_all_reduce_groups_of_mixed_sequences(text: str, groups: dict[Phase, int]) -> None:
    for phase, moved in Movement(parse_sequence(text)).phases.items():
        assert {len(r.ranks) for r in moved.reductions} == ({groups[phase]} & set(groups.values())
                if phase in groups else set())  # fmt: skip


def test_replicas_take_from_the_holder_with_the_same_outer_coordinate() -> None:
    sequence = parse_sequence("K,P2x2")
    for moved in Movement(sequence).phases.values():
        for hop in (hop for step in moved.operands for hop in step):
            assert sequence.coordinates[hop.source][0] == sequence.coordinates[hop.target][0]


class OStays(Primitive):
    """One map for all phases; the output of backward and of gradient travels."""

    axes = ("r", "c")

    def forward(self, r: int, c: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r, N=(r + c + t) % s, K=c)


def test_an_output_that_moves_with_t_is_a_travelling_partial_sum() -> None:
    sequence = Sequence.of(OStays(), 4)
    moved = Movement(sequence).phases["backward"]
    assert moved.partials[0] == ()
    for step in (1, 2, 3):
        assert offsets(sequence, moved.partials[step]) == {"dI": {(0, 1)}}
        assert len(moved.partials[step]) == 16


class NobodyHolds(Primitive):
    """At step 1 every device needs the column of W that step 0 sent nowhere."""

    axes = ("r",)

    def forward(self, r: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r, K=t)


def test_a_block_that_nobody_holds_gives_no_hop() -> None:
    assert Movement(Sequence.of(NobodyHolds(), 2)).phases["forward"].operands == ((), ())


class FarHome(Primitive):
    """Backward needs all rows of W on every device, which forward had on one device each."""

    axes = ("r",)

    def steps(self, s: int) -> int:
        return 1

    def forward(self, r: int, t: int, s: int) -> dict[str, int]:
        return dict(N=r)

    def backward(self, r: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r)


def test_a_device_may_receive_blocks_of_several_devices_between_phases() -> None:
    (hops,) = Movement(Sequence.of(FarHome(), 3)).phases["forward"].operands
    assert {(hop.index, hop.source, hop.target) for hop in hops if hop.tensor == "W"} == {
        ((row, 0), row, device) for row in range(3) for device in range(3) if device != row
    }


class LeavesOutputs(Primitive):
    """Forward goes on to another output block at every step, on the same rows."""

    axes = ("a", "e")

    def forward(self, a: int, e: int, t: int, s: int) -> dict[str, int]:
        return dict(N=a, M=e, K=(e + t) % s)


def test_an_output_block_stays_where_its_last_product_joined_it() -> None:
    movement = Movement(Sequence.of(LeavesOutputs(), 2))
    assert movement.end("forward", "O")[0] == {(0, 0), (0, 1)}
    reduced = {(total.index, total.ranks) for total in movement.phases["forward"].reductions}
    assert reduced == {((m, k), (m, m + 2)) for m in range(2) for k in range(2)}
