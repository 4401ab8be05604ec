"""Gradients of captured steps: never reduced, counted twice, scaled by the wrong count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from primepar.preflight.meaning.evaluate import CapturedCall, TermValues
from primepar.preflight.meaning.gradients import gradients
from primepar.preflight.meaning.recorder import TermRecorder
from primepar.preflight.meaning.terms import RankTerms
from primepar.schedule.program import AllReduce, Instruction, Program, Recv, ReduceScatter, Send
from primepar.verify.report import PropertyResult

RANKS = 4


class HandMadeRank:
    """One rank of a script that calls these methods in place of torch.distributed."""

    def __init__(self, rank: int) -> None:
        self.rank, self.recorder = rank, TermRecorder(lambda: "step.py:7")
        self.instructions: list[Instruction] = []
        self.calls: list[CapturedCall] = []

    def call(
        self, instruction: Instruction, reads: list[torch.Tensor], writes: list[torch.Tensor]
    ) -> None:
        nodes = tuple(self.recorder.inputs(reads))
        self.calls.append(CapturedCall(len(self.instructions), nodes))
        self.instructions.append(instruction)
        self.recorder.outputs(len(self.calls) - 1, writes)

    def all_reduce(self, tensor: torch.Tensor, *group: int) -> None:
        members = group or tuple(range(RANKS))
        self.call(AllReduce(group=members, block="x"), [tensor], [tensor])

    def local_gradient(self, parameter: torch.Tensor, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        gradient = torch.randn(parameter.shape, generator=generator)
        self.recorder.gradient(gradient)
        return gradient


Step = Callable[[HandMadeRank], None]


def verdict_on(step: Step, ranks: int = RANKS) -> PropertyResult:
    """Run a step on every rank, one after the other, and decide on its gradients."""
    every = [HandMadeRank(rank) for rank in range(ranks)]
    results: list[RankTerms] = []
    for each in every:
        with each.recorder:
            step(each)
        results.append(each.recorder.result())
    lists = tuple(tuple(each.instructions) for each in every)
    program = Program("primepar-program", 1, ranks, lists)
    nodes = [result.nodes for result in results]
    return gradients(TermValues(program, nodes, [each.calls for each in every]), results)


def parameter(size: int = 6) -> torch.Tensor:
    return torch.arange(1.0, 1 + size)


def data_parallel(skip: str = "", twice: str = "", wrong: str = "", constant: bool = False) -> Step:
    """A step with two parameters whose gradients are averaged over all ranks."""

    def step(rank: HandMadeRank) -> None:
        for number, name in enumerate(("norm", "router")):
            weight = torch.ones(6) if constant else parameter()
            gradient = rank.local_gradient(weight, 10 * rank.rank + number)
            if name != skip:
                rank.all_reduce(gradient)
            gradient.div_(2 * RANKS if name == wrong else RANKS)
            if name == twice:
                rank.all_reduce(gradient)
            rank.recorder.claim(name, 0, weight, gradient)

    return step


def sentence(result: PropertyResult) -> str:
    assert result.verdict == "refuted", result
    return result.counterexample or ""


def test_averaged_gradients_are_proved() -> None:
    assert verdict_on(data_parallel()).verdict == "proved"


def test_a_gradient_that_is_never_reduced() -> None:
    assert sentence(verdict_on(data_parallel(skip="router"))) == (
        "rank 1, gradient of router at step.py:7: expected the gradient of rank 0, which holds a "
        "replica, that is a sum over rank 0, got a sum over rank 1: reduce it over ranks 0,1,2,3"
    )


def test_a_gradient_that_is_reduced_twice() -> None:
    assert sentence(verdict_on(data_parallel(twice="router"))) == (
        "rank 0, gradient of router at step.py:7: expected its terms with the coefficient 1/4, "
        "as in the gradient of norm, got 1: scale it like the others"
    )


def test_a_gradient_that_is_scaled_by_the_wrong_count() -> None:
    assert sentence(verdict_on(data_parallel(wrong="norm"))).endswith(
        "expected its terms with the coefficient 1/8, as in the gradient of norm, got 1/4: "
        "scale it like the others"
    )


def test_equal_constants_may_be_parts_of_a_sharded_parameter() -> None:
    result = verdict_on(data_parallel(skip="norm", constant=True))
    assert result.verdict == "unknown"
    assert (result.reason or "").endswith(
        "if they are replicas: all elements are equal at the start, so that parts of a sharded "
        "parameter would look the same"
    )


@pytest.mark.parametrize("right", [True, False])
def test_buckets_and_accumulation_are_followed(right: bool) -> None:
    """Two micro-batches; a flat bucket of both gradients is scaled, reduced and copied back."""

    def step(rank: HandMadeRank) -> None:
        weights = [parameter(), parameter(4)]
        sums = [
            rank.local_gradient(weight, 7 * rank.rank + number).add_(
                rank.local_gradient(weight, 100 + 7 * rank.rank + number)
            )
            for number, weight in enumerate(weights)
        ]
        bucket = torch.empty(10)
        bucket[:6].copy_(sums[0])
        bucket[6:].copy_(sums[1])
        bucket.mul_(0.125)
        rank.all_reduce(bucket)
        for number, (weight, part) in enumerate(
            zip(weights, (bucket[:6], bucket[6:]), strict=True)
        ):
            gradient = part.clone()
            if number and not right:
                gradient += rank.local_gradient(weight, 1000 + rank.rank)
            rank.recorder.claim(f"w{number}", 0, weight, gradient)

    assert verdict_on(step).verdict == ("proved" if right else "refuted")


def test_equal_gradients_of_tensor_parallel_ranks_need_no_sum() -> None:
    """Ranks 0 and 1 compute one gradient, 2 and 3 another: it is averaged over the pairs only."""

    def step(rank: HandMadeRank) -> None:
        gradient = rank.local_gradient(parameter(), rank.rank // 2)
        rank.all_reduce(gradient, rank.rank % 2, rank.rank % 2 + 2)
        rank.recorder.claim("norm", 0, parameter(), gradient.div_(2))

    assert verdict_on(step).verdict == "proved"


def test_shards_of_a_sum_and_a_message_are_followed() -> None:
    """Each rank keeps its part of the sum; the last one sends its own to the first."""

    def step(rank: HandMadeRank) -> None:
        full, part = rank.local_gradient(parameter(8), rank.rank), torch.empty(2)
        everybody = tuple(range(RANKS))
        node = ReduceScatter(group=everybody, blocks=("a",) * RANKS, block="b")
        rank.call(node, [full], [part])
        if rank.rank == 3:
            rank.call(Send(peer=0, block="b"), [part], [])
        if rank.rank == 0:
            rank.call(Recv(peer=3, block="b"), [], [part])
        if rank.rank in (0, 3):
            rank.recorder.claim("shard", 0, parameter(2), part)

    assert verdict_on(step).verdict == "proved"


def test_an_operation_on_a_sum_is_opaque_and_equal_where_its_inputs_are() -> None:
    def step(rank: HandMadeRank) -> None:
        gradient = rank.local_gradient(parameter(), rank.rank)
        rank.all_reduce(gradient)
        clipped = gradient.clamp(-1, 1) if rank.rank != 2 else gradient.clamp(-2, 2)
        rank.recorder.claim("w", 0, parameter(), clipped)

    assert "got one that is computed otherwise" in sentence(verdict_on(step))
