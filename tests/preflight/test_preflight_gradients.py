"""Gradients of captured steps: never reduced, counted twice, scaled by the wrong count."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hand_made_ranks import HandMadeRank, Step, parameter, verdict_on
from profiles import IS_LONG
from random_reductions import RandomStep

from primepar.preflight.capture.process_group import RecordedGroup
from primepar.preflight.meaning.values import meant
from primepar.schedule.program import AllGather, Recv, ReduceScatter, Send
from primepar.verify.report import PropertyResult

RANKS = 4
EVERYBODY = tuple(range(RANKS))


def decided(step: Step) -> PropertyResult:
    return verdict_on(step, RANKS)


def data_parallel(skip: str = "", twice: str = "", wrong: str = "", constant: bool = False) -> Step:
    """A step with two parameters whose gradients are averaged over all ranks."""

    def step(rank: HandMadeRank) -> None:
        for number, name in enumerate(("norm", "router")):
            weight = torch.ones(8) if constant else parameter()
            gradient = rank.local_gradient(weight.numel(), 10 * rank.rank + number)
            if name != skip:
                rank.all_reduce(gradient, EVERYBODY)
            gradient.div_(2 * RANKS if name == wrong else RANKS)
            if name == twice:
                rank.all_reduce(gradient, EVERYBODY)
            rank.recorder.claim(name, 0, weight, gradient)

    return step


def sentence(result: PropertyResult) -> str:
    assert result.verdict == "refuted", result
    return result.counterexample or ""


def test_averaged_gradients_are_proved() -> None:
    assert decided(data_parallel()).verdict == "proved"


def test_a_gradient_that_is_never_reduced() -> None:
    assert sentence(decided(data_parallel(skip="router"))) == (
        "rank 1, gradient of router at step.py:7: expected the gradient of rank 0, which holds a "
        "replica, that is a sum over rank 0, got a sum over rank 1: reduce it over ranks 0,1,2,3"
    )


def test_a_gradient_that_is_reduced_twice() -> None:
    assert sentence(decided(data_parallel(twice="router"))) == (
        "rank 0, gradient of router at step.py:7: expected its terms with the coefficient 1/4, "
        "as in the gradient of norm, got 1: scale it like the others"
    )


def test_a_gradient_that_is_scaled_by_the_wrong_count() -> None:
    assert sentence(decided(data_parallel(wrong="norm"))).endswith(
        "expected its terms with the coefficient 1/8, as in the gradient of norm, got 1/4: "
        "scale it like the others"
    )


def test_a_rounded_third_is_a_third() -> None:
    assert meant(1 / 3) == Fraction(1, 3)
    assert meant(float(torch.tensor(1 / 3))) == Fraction(1, 3)
    assert meant(2.0**-40) == Fraction(1, 2**40)
    assert meant(0.5 + 2.0**-20) != Fraction(1, 2)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (dist.ReduceOp.SUM, ("sum", "1", 3.0)),
        (dist.ReduceOp.AVG, ("sum", "1/2", 1.5)),
        (vars(dist)["_make_nccl_premul_sum"](1 / 3), ("sum", "1/3", 1.0)),
        (dist.ReduceOp.PRODUCT, ("sum", "1", 2.0)),
    ],
)
def test_the_factor_of_a_reduction_is_recorded_and_values_are_reduced(
    operator: Any, expected: tuple[str, str, float]
) -> None:
    gaps: list[str] = []
    calls: Any = SimpleNamespace(_members=(0, 1), _recorder=SimpleNamespace(gap=gaps.append))
    kind, scale, reduced = RecordedGroup._reduction(calls, SimpleNamespace(reduceOp=operator))
    assert (kind, scale) == expected[:2]
    assert float(reduced([torch.tensor([1.0]), torch.tensor([2.0])])) == pytest.approx(expected[2])
    assert gaps == (
        ["reduces by product, which a program has not"] if operator == dist.ReduceOp.PRODUCT else []
    )


def test_equal_constants_may_be_parts_of_a_sharded_parameter() -> None:
    result = decided(data_parallel(skip="norm", constant=True))
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
            rank.local_gradient(weight.numel(), 7 * rank.rank + number).add_(
                rank.local_gradient(weight.numel(), 100 + 7 * rank.rank + number)
            )
            for number, weight in enumerate(weights)
        ]
        bucket = torch.empty(12)
        bucket[:8].copy_(sums[0])
        bucket[8:].copy_(sums[1])
        bucket.mul_(0.125)
        rank.all_reduce(bucket, EVERYBODY)
        for number, (weight, part) in enumerate(
            zip(weights, (bucket[:8], bucket[8:]), strict=True)
        ):
            gradient = part.clone()
            if number and not right:
                gradient += rank.local_gradient(weight.numel(), 1000 + rank.rank)
            rank.recorder.claim(f"w{number}", 0, weight, gradient)

    assert decided(step).verdict == ("proved" if right else "refuted")


def test_equal_gradients_of_tensor_parallel_ranks_need_no_sum() -> None:
    """Ranks 0 and 1 compute one gradient, 2 and 3 another: it is averaged over the pairs only."""

    def step(rank: HandMadeRank) -> None:
        gradient = rank.local_gradient(8, rank.rank // 2)
        rank.all_reduce(gradient, (rank.rank % 2, rank.rank % 2 + 2))
        rank.recorder.claim("norm", 0, parameter(), gradient.div_(2))

    assert decided(step).verdict == "proved"


def test_a_whole_gradient_that_is_summed_over_its_copies_is_not_certain() -> None:
    """Ranks 0 and 1 compute one gradient of `norm`: it is counted twice, or from other data."""

    def step(rank: HandMadeRank) -> None:
        for number, name in enumerate(("norm", "head", "tail")):
            seed = rank.rank // 2 if name == "norm" else 10 * number + rank.rank
            gradient = rank.local_gradient(8, seed)
            rank.all_reduce(gradient, EVERYBODY)
            rank.recorder.claim(name, 0, parameter() + number, gradient)

    result = decided(step)
    assert result.verdict == "unknown"
    assert result.reason == (
        "rank 0, gradient of norm at step.py:7: expected its terms with the coefficient 1, as in "
        "the gradient of head, got 2: scale it like the others, unless ranks compute equal "
        "gradients from different data"
    )


@pytest.mark.parametrize(
    ("scale", "problem"),
    [
        (lambda _, rank: 3 + rank,
         "each rank scales by its own factor: 1/3 on rank 0, 1/4 on rank 1, 1/5 on rank 2, 1/6 on "
         "rank 3, which sum to 19/20 and not to 1, as the weights of a mean do, such as its share "
         "of all tokens: scale all ranks alike, if they are meant alike"),
        (lambda gradient, _: gradient.norm(),
         "expected one factor on all ranks, got a number of this one's own, such as a clip by the "
         "norm of what it holds: clip after the sum, if all are meant alike"),
    ],
    ids=["count of tokens", "norm"],
)  # fmt: skip
def test_a_division_by_a_number_of_ones_own_is_a_question(
    scale: Callable[[torch.Tensor, int], float], problem: str
) -> None:
    def step(rank: HandMadeRank) -> None:
        gradient = rank.local_gradient(8, rank.rank)
        gradient.div_(scale(gradient, rank.rank))
        rank.all_reduce(gradient, EVERYBODY)
        rank.recorder.claim("w", 0, parameter(), gradient)

    result = decided(step)
    assert (result.verdict, result.reason) == (
        "unknown", f"rank 0, gradient of w at step.py:7: {problem}"
    )  # fmt: skip


def test_shards_of_a_sum_and_a_message_are_followed() -> None:
    """Each rank keeps its part of the sum; the last one sends its own to the first."""

    def step(rank: HandMadeRank) -> None:
        full, part = rank.local_gradient(8, rank.rank), torch.empty(2)
        node = ReduceScatter(group=EVERYBODY, blocks=("a",) * RANKS, block="b")
        rank.call(node, [full], [part])
        if rank.rank == 3:
            rank.call(Send(peer=0, block="b"), [part], [])
        if rank.rank == 0:
            rank.call(Recv(peer=3, block="b"), [], [part])
        if rank.rank in (0, 3):
            rank.recorder.claim("shard", 0, parameter(2), part)

    assert decided(step).verdict == "proved"


def test_an_operation_on_a_sum_is_opaque_and_equal_where_its_inputs_are() -> None:
    def step(rank: HandMadeRank) -> None:
        gradient = rank.local_gradient(8, rank.rank)
        rank.all_reduce(gradient, EVERYBODY)
        clipped = gradient.clamp(-1, 1) if rank.rank != 2 else gradient.clamp(-2, 2)
        rank.recorder.claim("w", 0, parameter(), clipped)

    assert "got one that is computed otherwise" in sentence(decided(step))


@pytest.mark.parametrize("reduced", [True, False])
def test_a_partial_sum_that_is_labelled_as_replicated(reduced: bool) -> None:
    def step(rank: HandMadeRank) -> None:
        partial = torch.arange(4.0) * (1 + rank.rank)
        rank.all_reduce(torch.ones(1), EVERYBODY)
        if reduced:
            rank.all_reduce(partial, EVERYBODY)
        rank.recorder.replica(EVERYBODY, partial)

    result = decided(step)
    assert result.name == "replication"
    if reduced:
        assert result.verdict == "proved"
    else:
        assert sentence(result) == (
            "rank 1, tensor labelled as replicated at step.py:7: expected the data of rank 0, got "
            "data that is computed otherwise: label it Partial or Shard, or reduce it over ranks "
            "0,1,2,3 before"
        )


@pytest.mark.parametrize("right", [True, False])
def test_a_flat_vector_that_is_cut_in_another_order(right: bool) -> None:
    def step(rank: HandMadeRank) -> None:
        gradients = [
            rank.local_gradient(8, rank.rank, "a"),
            rank.local_gradient(4, 9 + rank.rank, "b"),
        ]
        flat = torch.cat(gradients)
        rank.all_reduce(flat, EVERYBODY)
        first, second = (flat[:8], flat[8:]) if right else (flat[4:], flat[:4])
        rank.recorder.claim("a", 0, parameter(), first.clone())
        rank.recorder.claim("b", 0, parameter(4), second.clone())

    if right:
        assert decided(step).verdict == "proved"
    else:
        assert sentence(decided(step)) == (
            "rank 0, gradient of a at step.py:7: expected elements 0 to 3 to be gradients of the "
            "same elements, got those of a or of other elements: take the gradients apart as they "
            "were put together"
        )


@pytest.mark.parametrize("right", [True, False])
def test_parameters_that_are_summed_after_local_steps(right: bool) -> None:
    def step(rank: HandMadeRank) -> None:
        weight = parameter()
        rank.recorder.trained("w", weight)
        weight.add_(rank.local_gradient(8, rank.rank), alpha=-0.1)
        rank.all_reduce(weight, EVERYBODY)
        if right:
            weight.div_(RANKS)

    if right:
        assert decided(step).verdict == "proved"
    else:
        assert sentence(decided(step)) == (
            "rank 0, w at the end: expected a mean over ranks, in which the data of before the "
            "steps count once, got a sum in which they count 4 times: divide by the number of ranks"
        )


@pytest.mark.parametrize("right", [True, False])
def test_parts_that_are_updated_by_gradients_that_nobody_has_reduced(right: bool) -> None:
    def step(rank: HandMadeRank) -> None:
        weight, mine = parameter(), slice(2 * rank.rank, 2 * rank.rank + 2)
        rank.recorder.trained("w", weight)
        gradient = rank.local_gradient(8, rank.rank)
        if right:
            rank.all_reduce(gradient, EVERYBODY)
        part = weight[mine].add(gradient[mine], alpha=-0.1)
        rank.call(AllGather(group=EVERYBODY, block="b", blocks=tuple("cdef")), [part], [weight])

    if right:
        assert decided(step).verdict == "proved"
    else:
        assert sentence(decided(step)) == (
            "rank 0, w: expected elements 0 to 1 to be updated by the gradients of ranks 0,1,2,3, "
            "as others are, got those of ranks 0 alone: reduce the gradients before each rank "
            "updates its part"
        )


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_step_that_finds_no_gradient_is_not_proved(by_hand: bool) -> None:
    def step(rank: HandMadeRank) -> None:
        weight = parameter()
        rank.recorder.trained("w", weight)
        rank.recorder.idle = "step.py:9"
        if by_hand:
            weight.mul_(0.5)

    result = decided(step)
    assert (result.verdict, result.reason or result.counterexample) == (
        "unknown" if by_hand else "refuted",
        "rank 0, the optimizer's step at step.py:9: expected gradients, as a backward pass has "
        "computed some, got none: synchronise them before the step",
    )


@pytest.mark.parametrize("seed", range(2_000 if IS_LONG else 60))
def test_random_reductions_are_decided_as_their_numbers_are(seed: int) -> None:
    step = RandomStep(seed)
    result = verdict_on(step.run, step.ranks)
    wrong = {"refuted"} if step.sums_over_all() else {"refuted", "unknown"}
    assert result.verdict in ({"proved"} if step.is_right() else wrong), (seed, step.actions)


@pytest.mark.parametrize("reads", [True, False])
def test_a_gradient_that_a_step_leaves_out_and_a_later_one_adds_is_a_question(reads: bool) -> None:
    def step(rank: HandMadeRank) -> None:
        gradient = rank.local_gradient(8, rank.rank)
        total = gradient.clone()
        if not reads:
            total.zero_()
        rank.all_reduce(total, EVERYBODY)
        rank.recorder.claim("w", 0, parameter(), total)
        gradient.add_(rank.local_gradient(8, 10 + rank.rank))
        rank.all_reduce(gradient, EVERYBODY)
        rank.recorder.claim("w", 1, parameter(), gradient)

    result = decided(step)
    if reads:
        assert result.verdict == "proved"
    else:
        assert (result.verdict, result.reason) == (
            "unknown",
            "rank 0, gradient of w at step.py:7: expected gradients that were computed since step "
            "1, got one that step 1 has left out: reduce what is accumulated in the last backward "
            "pass before each step, unless updates are meant to be late",
        )


def stages(use: bool, apart: int = -1, table: bool = False) -> Step:
    """Two stages of two replicas each, whose layers all start from one seed.

    Or four replicas, of which two give two others data that they do not use before their weight.
    The rank `apart` starts otherwise.
    """

    def step(rank: HandMadeRank) -> None:
        first, data, weight = rank.rank < 2, torch.zeros(8), parameter() + (rank.rank == apart)
        rank.all_reduce(data, (0, 1) if first else (2, 3))
        if first:
            rank.call(Send(peer=rank.rank + 2, block="x"), [data * weight], [])
        else:
            received = torch.zeros(8)
            rank.call(Recv(peer=rank.rank - 2, block="x"), [], [received])
            _ = (received if use else data) * weight
        gradient = rank.local_gradient(8, rank.rank)
        rank.all_reduce(gradient, (0, 1) if first else (2, 3))
        rank.recorder.claim("0.weight", 0, weight, gradient)
        if first and table:
            rank.recorder.looked_up.add("0.weight")

    return step


def test_a_table_and_equal_data_that_enter_a_product_are_tied() -> None:
    assert decided(stages(use=True, table=True)).verdict == "unknown"


def test_stages_that_start_from_one_seed_are_no_replicas() -> None:
    result = decided(stages(use=True))
    assert (result.verdict, result.reason) == (
        "proved",
        "1 parameter equal on ranks 0,1 after step 1, each by the same sum of 2 gradients; "
        "1 parameter equal on ranks 2,3 after step 1, each by the same sum of 2 gradients; "
        "parameters with equal data, of which one computes what enters the other, were taken for "
        "different layers",
    )


def test_replicas_that_exchange_messages_are_no_layers() -> None:
    result = decided(stages(use=False))
    assert (result.verdict, result.reason) == (
        "unknown",
        "rank 3, gradient of 0.weight at step.py:7: expected the gradient of rank 1, which holds a "
        "replica, that is a sum over ranks 0,1, got a sum over ranks 2,3: reduce it over ranks "
        "0,1,2,3, if they are replicas: only equal data at the start speak for it, and these ranks "
        "sum no gradients with one another",
    )


def test_a_replica_in_one_stage_that_starts_otherwise() -> None:
    assert sentence(decided(stages(use=True, apart=3))) == (
        "rank 3, gradient of 0.weight at step.py:7: expected the data of rank 2, as both get one "
        "sum of gradients, got other data from the start: seed both alike, or broadcast the "
        "parameters before the first step"
    )
