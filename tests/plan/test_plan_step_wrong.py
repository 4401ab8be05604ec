"""Steps that are wrong in one place are refuted there, in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from step_cases import lowered, place, refuted, spoilt

from primepar.schedule.program import AllReduce, Compute, Free, Instruction, IRecv, ISend, Wait

Spoil = Callable[[int, list[Instruction]], None]
SUM, NEW = "all_reduce norm.weight.grad[0]", "blocks.0.fc1.weight.new"


def left_out(*texts: str, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Spoil:
    """Leave instructions out on some ranks."""

    def spoil(rank: int, instructions: list[Instruction]) -> None:
        for text in texts if rank in ranks else ():
            del instructions[place(instructions, text)]

    return spoil


def doubled(rank: int, instructions: list[Instruction]) -> None:
    instructions.insert(place(instructions, SUM), instructions[place(instructions, SUM)])


def over_copies(rank: int, instructions: list[Instruction]) -> None:
    """Sum over the ranks that do the same, not over those that hold other rows."""
    instructions[place(instructions, SUM)] = AllReduce(
        ((0, 1), (2, 3))[rank // 2], block="norm.weight.grad[0]"
    )


def after_the_update(rank: int, instructions: list[Instruction]) -> None:
    """Sum a gradient once the first moment has been made of it."""
    summed = instructions.pop(place(instructions, SUM))
    instructions.insert(place(instructions, "norm.weight.m.update") + 1, summed)


def another_piece(rank: int, instructions: list[Instruction]) -> None:
    """Send a piece of the token table that another rank needs."""
    if rank == 0:
        index = place(instructions, "isend head/W[1,0] -> 1")
        instructions[index] = replace(instructions[index], block="head/W[0,0]")


def weight_elsewhere(rank: int, instructions: list[Instruction]) -> None:
    """Leave the new weights of ranks 0 and 1 to one another."""
    if rank < 2:
        mine, other = f"{NEW}[0,{rank}]", f"{NEW}[0,{1 - rank}]"
        instructions += [
            ISend(1 - rank, mine, request="mine"),
            IRecv(1 - rank, other, request="other"),
            Wait("mine"),
            Wait("other"),
            Free(mine),
        ]


def left_away(rank: int, instructions: list[Instruction]) -> None:
    """Do not return the head's weight to its home in the last step of backward."""
    instructions[:] = [
        node for node in instructions if not str(getattr(node, "request", "")).startswith("head B1")
    ]


def head_twice(rank: int, instructions: list[Instruction]) -> None:
    """Add the head's part of the table's gradient twice, and the embedding's never."""
    index = place(instructions, "embedding.token.fan-in")
    node = instructions[index]
    assert isinstance(node, Compute)
    instructions[index] = replace(node, reads=(node.reads[1], node.reads[1]))


SQUARES = (
    "rank 0, instruction {0} (gradient.1.squares gradient.1.squares[0] += "
    "blocks.0.norm1.weight.grad[0] * blocks.0.norm2.weight.grad[0] * norm.weight.grad[0]), which "
    "reads norm.weight.grad[0] for the gradient.1.squares sub-operator (X=0): expected "
)
ALL_SQUARES = (
    "rank 0, instruction 98 (gradient.0.squares gradient.0.squares[0] += "
    "embedding.token.grad[0,0] * blocks.0.qkv.weight.grad[0,0] * blocks.0.proj.weight.grad[0,0] * "
    "blocks.0.fc1.weight.grad[0,0] * blocks.0.fc2.weight.grad[0,0] * head.weight.grad[0,0])"
)
ADDED_TWICE = (
    "each norm.weight.gradient product once, got each twice: it is added twice, so add it once or "
    "write scale 1/2: see rank 0, instruction {0} (all_reduce norm.weight.grad[0] over 0,1)"
)
OTHER_ROWS = (
    "norm.weight.gradient product (M={0}, K=0) once, got it never: send it here from rank {0}, "
    "instruction 36 (norm.weight.gradient norm.weight.grad[0] += head/dI[{0},0] * "
    "norm/normed[{0},0])"
)


@pytest.mark.parametrize(
    ("plan", "ranks", "family", "spoil", "expected"),
    [
        pytest.param(
            "data", 2, "llama", left_out(SUM),
            {"completion": SQUARES.format(99) + OTHER_ROWS.format(1)},
            id="a gradient left unsummed",
        ),
        pytest.param(
            "data", 2, "llama", after_the_update,
            {"completion": SQUARES.format(99) + OTHER_ROWS.format(1)},
            id="an update before the sum",
        ),
        pytest.param(
            "data", 2, "llama", left_out(SUM, ranks=(1,)),
            {
                "deadlock-freedom": "rank 1, instruction 48 (all_reduce "
                "blocks.0.fc2.weight.grad[0,0] over 0,1): expected 16 elements as in rank 0, "
                "instruction 37 (all_reduce norm.weight.grad[0] over 0,1), got 384: send and "
                "receive blocks of one size",
            },
            id="an all-reduce that one rank misses",
        ),
        pytest.param(
            "data", 2, "llama", doubled,
            {
                "completion": SQUARES.format(101) + ADDED_TWICE.format(38)
            },
            id="a gradient summed twice",
        ),
        pytest.param(
            "M2,megatron", 4, "llama", over_copies,
            {
                "completion": SQUARES.format(112) + "norm.weight.gradient product (M=0, K=0) "
                "once, got it twice: fix rank 0, instruction 47 (all_reduce norm.weight.grad[0] "
                "over 0,1)"
            },
            id="a sum over the wrong group",
        ),
        pytest.param(
            "summa", 4, "gpt2", another_piece,
            {
                "alignment": "rank 3, instruction 97 (head.forward head/O[1,1] += norm[1,0] * "
                "head/W[1,0]): expected the data of head/W[1,0] in head/W[1,0] for the "
                "head.forward sub-operator (M=1, N=0, K=1), got that of head/W[0,0]: send "
                "head/W[1,0] here before"
            },
            id="another piece of a redistribution",
        ),
        pytest.param(
            "summa", 4, "llama", weight_elsewhere,
            {
                "completion": "rank 0, final blocks.0.fc1.weight.new[0,0]: expected the finished "
                "sum, got no such block: keep it on this rank, or send it here"
            },
            id="a weight that ends elsewhere",
        ),
        pytest.param(
            "primepar", 4, "llama", left_away,
            {
                "alignment": "rank 0, instruction 422 (head.weight.update head.weight.new[0,0] += "
                "head.weight[0,0] * head.weight.m.new[0,0] * head.weight.v.new[0,0]): expected "
                "head.weight[0,0] in this rank's memory, got none there: free or evict it later"
            },
            id="a weight that is not returned to its home",
        ),
        pytest.param(
            "data", 2, "llama", left_out("norm.weight.update", ranks=(1,)),
            {
                "coverage": "norm.weight.update sub-operator (K=0, R=1): expected one rank to "
                "compute it, got none: add it",
                "completion": "rank 1, final norm.weight.new[0]: expected the finished sum, got "
                "no such block: keep it on this rank, or send it here",
            },
            id="a copy that is not updated",
        ),
        pytest.param(
            "data", 2, "gpt2", head_twice,
            {
                "alignment": "rank 0, instruction 120 (embedding.token.fan-in "
                "embedding.token.grad[0,0] += head/dW[0,0] * head/dW[0,0]): expected the data of "
                "embedding/dtable[0,0] in head/dW[0,0] for the embedding.token.fan-in "
                "sub-operator (V=0, K=0, R=0), got that of head.gradient product (M=0, N=0, K=0) "
                "+ head.gradient product (M=1, N=0, K=0): read embedding/dtable[0,0]",
                "completion": "embedding/dtable[0,0]: expected it in final on some rank, or read "
                "when it is finished, got neither: list it where it ends, or give it a home",
            },
            id="half of a tied gradient twice",
        ),
        pytest.param(
            "summa", 4, "llama", left_out("all_reduce norm/square"),
            {
                "completion": "rank 0, instruction 66 (norm.normalize norm/normed[0,0] += "
                "blocks.0.add2[0,0] * norm/square[0]), which reads norm/square[0] for the "
                "norm.normalize sub-operator (M=0, K=0): expected norm.square product (M=0, K=1) "
                "once, got it never: send it here from rank 1, instruction 65 (norm.square "
                "norm/square[0] += blocks.0.add2[0,1])"
            },
            id="a statistic of half of the columns",
        ),
        pytest.param(
            "megatron", 4, "llama", left_out("all_reduce loss/largest"),
            {
                "completion": "rank 0, instruction 28 (loss.sums loss/sums[0,0] += head/O[0,0] * "
                "loss/largest[0] * targets[0]), which reads loss/largest[0] for the loss.sums "
                "sub-operator (M=0, K=0): expected loss.largest product (M=0, K=1) once, got it "
                "never: send it here from rank 1, instruction 27 (loss.largest loss/largest[0] "
                "+= head/O[0,1])"
            },
            id="a maximum of a quarter of the vocabulary",
        ),
    ],
)  # fmt: skip
def test_a_step_that_is_wrong_is_refuted_where_it_is(
    plan: str, ranks: int, family: str, spoil: Spoil, expected: dict[str, str]
) -> None:
    assert refuted(spoilt(lowered(plan, ranks, family), spoil)) == expected
