"""Steps of a pipeline that are wrong in one place are refuted there.

Others, with an instruction left out, moved or changed, are in `test_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from pipelined_plans import smallest
from step_cases import place, refuted, spoilt

from primepar.schedule.program import Compute, Instruction, IRecv, ISend, Wait
from primepar.verify import verify_program

Spoil = Callable[[int, list[Instruction]], None]
OUTPUT, STASH = "blocks.0.add2", "blocks.0.norm1/normed[0,0]"


def swapped(rank: int, nodes: list[Instruction]) -> None:
    """Send the first micro-batch to stage 1 once more, as the second."""
    if rank == 0:
        number = place(nodes, f"isend {OUTPUT}[1,0]")
        nodes[number] = replace(nodes[number], block=f"{OUTPUT}[0,0]")


def unsent(rank: int, nodes: list[Instruction]) -> None:
    """Do not send the gradient of the last micro-batch back to stage 0."""
    if rank == 1:
        send = nodes.pop(place(nodes, f"isend {OUTPUT}.grad[1,0]"))
        assert isinstance(send, ISend)
        nodes.remove(Wait(send.request))


def freed_early(rank: int, nodes: list[Instruction]) -> None:
    """Free a stash of micro-batch 0 before its backward."""
    if rank == 0:
        free = nodes.pop(place(nodes, f"free {STASH}"))
        nodes.insert(place(nodes, "blocks.0.norm1.forward blocks.0.norm1[0,0]") + 1, free)


def received_in_another_order(rank: int, nodes: list[Instruction]) -> None:
    """Post the receives of stage 1 in the other order than stage 0 sends."""
    if rank == 1:
        first, second = (
            number for number, node in enumerate(nodes)
            if isinstance(node, IRecv) and node.block.startswith(f"{OUTPUT}[")
        )  # fmt: skip
        nodes[first], nodes[second] = (
            replace(nodes[first], block=f"{OUTPUT}[1,0]"),
            replace(nodes[second], block=f"{OUTPUT}[0,0]"),
        )


def one_micro_batch_twice(rank: int, nodes: list[Instruction]) -> None:
    """Add the weight gradient of micro-batch 1 twice."""
    if rank == 0:
        number = place(nodes, "blocks.0.fc1.gradient blocks.0.fc1.weight.grad[0,0] += "
                              "blocks.0.norm2[1,0]")  # fmt: skip
        nodes.insert(number, nodes[number])


def divided_by_a_micro_batch(rank: int, nodes: list[Instruction]) -> None:
    """Divide the gradient of the loss by the rows of a micro-batch, not by those of the step."""
    if rank == 1:
        for number, node in enumerate(nodes):
            if isinstance(node, Compute) and node.phase == "loss.backward":
                assert node.scale == "1/8"
                nodes[number] = replace(node, scale="1/4")


WRONG_DATA = (
    "rank 1, instruction 91 (blocks.1.norm1.statistics blocks.1.norm1/statistics[0,1] += "
    "blocks.0.add2[1,0]): expected the data of blocks.0.add2[1,0] in blocks.0.add2[1,0] for the "
    "blocks.1.norm1.statistics sub-operator (M=1, K=0), got that of blocks.0.add2.forward product "
    "(M=0, K=0): send blocks.0.add2[1,0] here before"
)
NOT_YET = (
    "rank 1, instruction 3 (blocks.1.norm1.statistics blocks.1.norm1/statistics[0,0] += "
    "blocks.0.add2[0,0]): expected blocks.0.add2[0,0] in this rank's memory, got none there: "
    "receive or compute it before, or list it in initial"
)
FREED = (
    "rank 0, instruction 95 (blocks.0.norm1.weight.gradient blocks.0.norm1.weight.grad[0] += "
    "blocks.0.qkv/dI[0,0] * blocks.0.norm1/normed[0,0]): expected blocks.0.norm1/normed[0,0] in "
    "this rank's memory, got none there: free or evict it later"
)
TWICE = (
    "blocks.0.fc1.gradient sub-operator (M=1, N=0, K=0): expected one rank to compute it once, got "
    "rank 0, instruction 149 and rank 0, instruction 150: keep one of them"
)
DIVIDED = (
    "rank 1, instruction 41 (head.backward head/dI[0,0] += loss/dI[0,0] * embedding.token[0,0]), "
    "which reads loss/dI[0,0] for the head.backward sub-operator (M=0, N=0, K=0): expected "
    "loss.backward product (M=0, K=0) 1/8 times, got it 1/4 times: it is added twice, or is a mean "
    "over 4 instead of 8: see rank 1, instruction 38 (loss.backward loss/dI[0,0] += 1/4 * "
    "loss/logs[0,0] * targets[0])"
)
UNSENT = (
    "rank 0, instruction 60 (irecv blocks.0.add2.grad[1,0] <- 1): expected 336 elements as in "
    "rank 1, instruction 174 (isend head/dW[0,0] -> 0), got 64: send and receive blocks of one size"
)


@pytest.mark.parametrize(
    ("spoil", "refutes", "what", "why"),
    [
        (swapped, {"alignment", "races"}, "alignment", WRONG_DATA),
        (received_in_another_order, {"alignment", "placement"}, "placement", NOT_YET),
        (freed_early, {"alignment"}, "alignment", FREED),
        (one_micro_batch_twice, {"coverage", "completion"}, "coverage", TWICE),
        (divided_by_a_micro_batch, {"completion"}, "completion", DIVIDED),
        (unsent, {"deadlock-freedom"}, "deadlock-freedom", UNSENT),
    ],
)
def test_a_pipeline_that_is_wrong_is_refuted(
    spoil: Spoil, refutes: set[str], what: str, why: str
) -> None:
    counterexamples = refuted(spoilt(smallest(), spoil))
    assert set(counterexamples) == refutes
    assert counterexamples[what] == why


def test_a_pipeline_without_a_change_is_proved() -> None:
    assert verify_program(smallest()).verdict == "proved"
