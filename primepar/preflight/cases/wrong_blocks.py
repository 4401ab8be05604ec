"""Cases of blocks that are not the ones meant: the wrong message, the wrong step, the wrong row."""

from __future__ import annotations

from msgspec.structs import replace

from primepar.preflight.cases.public_case import PAIR, phase, program, public_case
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Group, Instruction, Recv, Send


@public_case("alignment", "huggingface/diffusers#14265")
def keys_of_the_first_step(fixed: bool) -> Program:
    """Backward of ring attention reads the keys and values of its first step at every step.

    Three ranks hold the queries of their part of the sequence. Keys and values travel round a ring,
    so that each rank meets all of them, and their gradients travel with them. In the thread the
    forward saved the tensors of step 0 alone, and backward read what was saved. Every rank computed
    the gradients of all steps with its own keys, without any error.

    Where operands travel, what backward reads is a matter of the step. Test gradients against dense
    ones on at least three ranks, as two can hide a wrong direction.
    """
    ranks = 3
    queries = phase("query gradient", "q[Q] kv[K] -> dq[Q]", Q=ranks, K=ranks)
    keys = phase("key gradient", "q[Q] kv[K] -> dkv[K]", Q=ranks, K=ranks)

    def steps(rank: int) -> list[Instruction]:
        listed: list[Instruction] = []
        for step in range(ranks):
            here, coming = (rank + step) % ranks, (rank + step + 1) % ranks
            read = (f"q[{rank}]", f"kv[{here if fixed else rank}]")
            works = (queries(Q=rank, K=here), keys(Q=rank, K=here))
            listed += [replace(work, reads=read) for work in works]
            before, after = (rank - 1) % ranks, (rank + 1) % ranks
            moved = ["dkv[{}]"] + ["kv[{}]"] * (step < ranks - 1)
            sends = [Send(before, name.format(here)) for name in moved]
            receives = [Recv(after, name.format(coming)) for name in moved]
            listed.append(Group((*sends, *receives)))
        return listed

    blocks = [(f"q[{rank}]", f"kv[{rank}]") for rank in range(ranks)]
    ends = [(f"dq[{rank}]", f"dkv[{rank}]") for rank in range(ranks)]
    return program(map(steps, range(ranks)), [queries, keys], blocks, ends)


@public_case("placement", "NVIDIA/Megatron-LM#1450")
def both_neighbours_are_one(fixed: bool) -> Program:
    """In a ring of two, the next and the previous rank are the same.

    Two ranks hold two stages each, so that both neighbours of a rank are the other one. Each sends
    a gradient back and activations on, and receives both. In the order of the thread the first
    message of a rank is its gradient, while the first that the other expects is activations.
    Messages of a pair match in order, so each gets the wrong tensor.

    A pair of ranks has one order of messages, whatever roles the ranks have. If two roles share a
    pair, send in the order in which the other side receives.
    """
    use = phase("use", "x[R] dy[R] -> dw[R]", R=2)

    def calls(rank: int) -> tuple[Instruction, ...]:
        other = 1 - rank
        sends = (Send(other, f"dy[{other}]"), Send(other, f"x[{other}]"))
        receives = (Recv(other, f"x[{rank}]"), Recv(other, f"dy[{rank}]"))
        return Group((*sends, *(receives[::-1] if fixed else receives))), use(R=rank)

    made = [(f"x[{1 - rank}]", f"dy[{1 - rank}]") for rank in PAIR]
    return program(map(calls, PAIR), [use], made, [(f"dw[{rank}]",) for rank in PAIR])


@public_case("coverage", "NVlabs/LongLive#71")
def samplers_with_other_seeds(fixed: bool) -> Program:
    """Each rank draws its samples from a permutation of its own.

    A distributed sampler permutes all samples, and rank r takes every second one from position r.
    This divides the samples only if the permutation is the same on both ranks. In the thread the
    seed contained the time and the rank. Some samples were then used twice and others never.

    Ranks that divide data by position must agree on the order of the data. Seed by what all ranks
    share, and let the rank select.
    """
    samples = (0, 1, 2, 3)
    gradient = phase("gradient", "sample[S] -> grad[0]", scale="1/4", S=len(samples))
    orders = (samples, samples if fixed else samples[::-1])
    return program(
        [
            (
                *(gradient(S=sample) for sample in orders[rank][rank::2]),
                AllReduce(PAIR, block="grad[0]", scale="1/4"),
            )
            for rank in PAIR
        ],
        [gradient],
        final=[("grad[0]",)] * 2,
    )
