"""Cases of buffers: written while they are sent, kept for too long, or sent too often."""

from __future__ import annotations

from msgspec.structs import replace

from primepar.preflight.cases.public_case import PAIR, phase, program, public_case
from primepar.schedule import Program
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Compute,
    Free,
    Instruction,
    ISend,
    Recv,
    Wait,
)
from primepar.schedule.signature import Tensor


@public_case("races", "vllm-project/vllm#54962")
def buffer_of_a_pending_send(fixed: bool) -> Program:
    """A stage starts its next forward while the output of the last one is still being sent.

    The stages of a pipeline post their sends and go on. The next forward writes the buffer that the
    send still reads, so the next stage may get a mix of both. In the thread some prompts gave
    garbage and nothing was logged. The fixed program waits for the send before it reuses the
    buffer.

    A posted send keeps its buffer until its wait. Reuse a buffer after the wait, or have two.
    """

    def first() -> list[Instruction]:
        listed: list[Instruction] = []
        for chunk in PAIR:
            request = f"send {chunk}"
            listed += [Free("hidden")] * (chunk > 0)
            listed += [Compute((f"tokens {chunk}",), "hidden")]
            listed += [ISend(1, "hidden", request=request), Wait(request)]
        if not fixed:
            wait = listed.pop(2)
            listed.insert(4, wait)
        return listed

    return program([first(), (Recv(0, "chunk 0"), Recv(0, "chunk 1"))])


@public_case("races", "OpenNMT/OpenNMT-py#2295")
def scaled_before_the_wait(fixed: bool) -> Program:
    """The sum of the gradients is divided while it is still being made.

    The all-reduce is posted, and the next line divides its buffer by the number of ranks. Nothing
    waits for the sum, so the division may come before or after it, or between. A user reports that
    training was right again without the asynchronous call.

    A posted collective returns no data. Its wait must come before the first use of the result.
    """
    wait, mean = Wait("sum"), Compute(("grad",), "mean", scale="1/2")
    end = (wait, mean) if fixed else (mean, wait)
    return program([(AllReduce(PAIR, block="grad", request="sum"), *end)] * 2)


@public_case("memory", "huggingface/transformers#46113")
def all_gradients_gathered(fixed: bool) -> Program:
    """To clip by the norm, every rank gathers all gradients and keeps them until the end.

    Each of two ranks holds half of the gradients of three layers. The norm needs them one by one,
    but all are gathered into a list first. A rank then holds the gradients of the whole model for a
    moment, whatever it holds in training. The fixed program frees what it has gathered of a layer
    before it gathers the next. Its bound is the halves, one gathered block and the norm.

    Memory is a matter of when, so the peak of a step may be in its smallest function. State a bound
    and have it checked.
    """
    layers = 3
    squares = phase("squares", "g[L,0] g[L,1] -> norm[0]", L=layers, R=2)

    def calls(rank: int) -> list[Instruction]:
        listed: list[Instruction] = []
        for layer in range(layers):
            halves = tuple(f"g[{layer},{half}]" for half in PAIR)
            listed += [AllGather(PAIR, block=halves[rank], blocks=halves), squares(L=layer, R=rank)]
            listed += [Free(halves[1 - rank])] * fixed
        return listed

    halves = [tuple(f"g[{layer},{rank}]" for layer in range(layers)) for rank in PAIR]
    sizes = {"g": Tensor(((0, 1, 2, 3), (0, 2, 4))), "norm": Tensor(((0, 1),))}
    return program(map(calls, PAIR), [squares], halves, [("norm[0]",)] * 2, sizes, memory=6 + 2 + 1)


@public_case("traffic", "karpathy/nanochat#33")
def summed_in_every_micro_batch(fixed: bool) -> Program:
    """Gradients are summed over the ranks after each micro-batch, and not once.

    Two ranks add up the gradients of two micro-batches each. The values are right either way, as a
    sum of sums is the sum of all. But the program sends the whole gradient once for each
    micro-batch. The fixed program adds up locally, and sums over the ranks at the end.

    A program can compute the right numbers and still send too much. State what a step is to send,
    and have it checked.
    """
    gradient = phase("gradient", "x[B,D] -> grad[0]", B=2, D=2)
    final, part = "grad[0]", "grad[0]'"

    def calls(rank: int) -> list[Instruction]:
        if fixed:
            return [*(gradient(B=batch, D=rank) for batch in PAIR), AllReduce(PAIR, block=final)]
        listed: list[Instruction] = []
        for batch in PAIR:
            listed += [
                replace(gradient(B=batch, D=rank), accumulates=part),
                AllReduce(PAIR, block=part),
                Compute((part,), final),
                Free(part),
            ]
        return listed

    sizes = {"grad": Tensor(((0, 4),))}
    return program(map(calls, PAIR), [gradient], None, [(final,)] * 2, sizes, traffic=4)
