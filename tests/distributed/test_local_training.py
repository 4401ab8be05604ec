"""Training with replicas that step by themselves: against synchronous training, and by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import local_sgd_cases as method_cases
import local_training_cases as local
import numpy as np
import pytest
import training_cases as cases
from distributed_ranks import on_ranks
from lowered_steps import shared_folder
from msgspec.structs import replace
from numpy.typing import NDArray
from saved_tensors import arrays_of, files_of

import primepar
from primepar.distributed.training.log import EvaluateRow, StepRow, read_log
from primepar.errors import PlanError
from primepar.models import ModelConfig, WeightFile, initial_parameter
from primepar.operators import parameter_views
from primepar.operators.averaging import lower_average
from primepar.partition import parse_sequence
from primepar.plan import preset_plan
from primepar.plan.presets import uniform_plan
from primepar.plan.replicas import replicas_of
from primepar.reference.oracle.train import SGD
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule.program import AllReduce, Compute, Instruction

CLOSE = 1e-12
"""Not ==: a mean over the rows of a batch is summed in another order than a mean of two means."""
STEP_8 = "step-00000008"


class Runs(NamedTuple):
    """A folder with what four processes left, and what each of them answered."""

    folder: Path
    answers: list[dict[str, Any]]


@pytest.fixture(scope="module")
def four() -> Runs:
    return Runs(*shared_folder("local", lambda folder: on_ranks(4, local.four_ranks, folder)))


def rows(folder: Path) -> list[StepRow]:
    return [row for row in read_log(folder / "log.jsonl") if isinstance(row, StepRow)]


def weights(path: Path, model: ModelConfig) -> dict[str, NDArray[Any]]:
    """The saved parameters."""
    file = WeightFile(path, model)
    return {
        name: np.asarray(file.read_block(name, tuple(slice(size) for size in shape)))
        for name, shape in model.parameter_shapes.items()
    }


def model() -> ModelConfig:
    return replace(cases.SMALL, layers=1).model


def farthest(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def test_every_run_ended_well(four: Runs) -> None:
    for name in ("together", "one", "once", "straight", "resumed", "later"):
        assert [answer[name] for answer in four.answers] == [0] * 4, name


def test_a_period_of_one_with_sgd_is_synchronous_training(four: Runs) -> None:
    together, one = (cases.losses(four.folder / name) for name in ("together", "one"))
    assert one == pytest.approx(together, rel=CLOSE, abs=0)
    saved = [weights(four.folder / f"{name}.safetensors", model()) for name in ("together", "one")]
    assert farthest(*saved) < CLOSE
    assert together[4] < together[1]


def test_a_period_beyond_the_end_averages_once_as_by_hand(four: Runs) -> None:
    """Each replica is trained alone in NumPy, on its half of every batch; then their mean."""
    config, models, losses = model(), [], []
    for replica in range(2):
        start = {name: initial_parameter(config, name, 0) for name in config.parameter_shapes}
        alone, sgd, own = Transformer(config, start), SGD(local.RATE), []
        position = cases.TEXT.begin(0)
        for _ in range(local.STEPS):
            batch = cases.TEXT.batch(position, cases.BATCH, config.context)
            position = position.after(cases.BATCH, cases.TEXT.windows(config.context))
            half = slice(replica * cases.BATCH // 2, (replica + 1) * cases.BATCH // 2)
            tokens, targets = (part[half] for part in batch)
            loss, gradients = alone.loss_and_gradients(tokens, targets)
            alone.parameters = sgd.step(alone.parameters, gradients)
            own.append(loss)
        models.append(dict(alone.parameters))
        losses.append(own)
    mean = {name: (models[0][name] + models[1][name]) / 2 for name in models[0]}
    assert farthest(weights(four.folder / "once.safetensors", config), mean) < 1e-10
    logged = list(cases.losses(four.folder / "once").values())
    assert logged == pytest.approx(np.mean(losses, axis=0), rel=1e-10)
    assert farthest(models[0], mean) > 1e-4


def test_a_resumed_run_is_the_same_run_bit_by_bit(four: Runs) -> None:
    whole = cases.losses(four.folder / "straight")
    assert cases.losses(four.folder / "resumed") == {n: whole[n] for n in range(5, 9)}
    files = [files_of(four.folder / name / STEP_8) for name in ("whole", "half")]
    assert files[0] == files[1]


def test_a_checkpoint_has_the_state_of_every_replica(four: Runs) -> None:
    tensors = arrays_of(four.folder / "whole" / "step-00000004")
    last = arrays_of(four.folder / "whole" / STEP_8)
    names = model().parameter_shapes
    assert set(tensors) == {
        f"replica{replica}.{kind}.{name}"
        for replica in range(2)
        for kind in ("model", "exp_avg", "exp_avg_sq")
        for name in names
    }
    for name in names:
        assert not np.array_equal(
            tensors[f"replica0.model.{name}"], tensors[f"replica1.model.{name}"]
        )
        assert np.array_equal(last[f"replica0.model.{name}"], last[f"replica1.model.{name}"])


def test_the_log_has_the_bytes_of_every_kind_of_step(four: Runs) -> None:
    """An average is a ring all-reduce of a rank's parameters over K = 2: 2 (K - 1) / K of them."""
    plan = uniform_plan(model(), parse_sequence(local.PLAN))
    average = 8 * sum(
        prod(line[index + 1] - line[index] for line, index in zip(view.cuts, block, strict=True))
        for view in parameter_views(plan).values()
        for block in view.held[0]
    )
    sent = [(row.sent_bytes[0], row.other_bytes[0]) for row in rows(four.folder / "straight")]
    together, alone = sent[0], sent[2]
    averaging = alone[0], alone[1] + average
    assert sent == [together, together, alone, alone, averaging, alone, alone, averaging]
    assert together[0] + together[1] > alone[0] + alone[1]
    assert [8 * float(n) for n in primepar.check(lower_average(replicas_of(plan))).sent] == [
        average
    ] * 4


def test_an_evaluation_between_averages_is_of_the_mean(four: Runs) -> None:
    log = read_log(four.folder / "straight" / "log.jsonl")
    evaluated = {row.step: row.loss for row in log if isinstance(row, EvaluateRow)}
    config = model()
    saved = arrays_of(four.folder / "whole" / "step-00000004")
    means = {
        name: (saved[f"replica0.model.{name}"] + saved[f"replica1.model.{name}"]) / 2
        for name in config.parameter_shapes
    }
    dense = Transformer(config, means)
    count = cases.SMALL.evaluate_batches
    batches = cases.TEXT.held_out_batches(count, cases.BATCH, config.context)
    assert evaluated[4] == pytest.approx(
        np.mean([dense.loss(*batch) for batch in batches]), rel=1e-10
    )
    assert list(evaluated) == [4, 8]


def test_torch_runs_the_program_of_the_method_as_the_emulator_does(four: Runs) -> None:
    program = local.METHOD.program()
    whole = method_cases.drawn(local.METHOD, 0)
    expected = method_cases.emulated(program, local.METHOD, whole)
    for answer in four.answers:
        assert (answer["method"] == expected).all()


def test_the_trace_has_the_ranks_of_all_replicas(four: Runs) -> None:
    events = json.loads((four.folder / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1, 2, 3}


def test_replicas_cannot_be_resumed_together(four: Runs) -> None:
    path = four.folder / "other" / "step-00000004"
    assert four.answers[0]["refused"] == (
        f"CheckpointError: {path}: expected a checkpoint of 1 replica, got one of 2: resume with "
        "averaging.every and a plan of 2 replicas"
    )


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    assert cases.train(tmp_path / "a", steps=1, layers=1, checkpoint=str(folder)) == 0
    answer = cases.train(
        tmp_path / "b", steps=2, layers=1, checkpoint=str(folder), resume=True, optimizer="sgd"
    )
    assert answer == (
        f"CheckpointError: {folder / 'step-00000001'}: expected a checkpoint of "
        "optimizer.name=sgd, got one of adamw: add --set optimizer.name=adamw"
    )


# Replicas and their average, as programs


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("data", 4), ("M2,megatron", 4), ("M2,megatron-sp", 4), ("M2,primepar", 8), ("M2,summa", 8)],
)
def test_an_average_is_proved_and_exact(name: str, ranks: int) -> None:
    replicas = replicas_of(preset_plan(name, cases.SMALL.model, ranks, 8))
    assert replicas.plan.ranks * replicas.count == ranks
    assert replicas.plan.batch == 8 // replicas.count
    program = lower_average(replicas)
    assert primepar.verify(program).verdict == "proved"
    assert primepar.check(program).equal


OTHERS: dict[tuple[int, ...], tuple[int, ...]] = {(0, 2): (0, 3), (1, 3): (1, 2)}
"""Groups of ranks that are not at the same place in their replicas."""
SPOILT: dict[str, Callable[[Instruction], Instruction]] = {
    "no coefficient": lambda node: replace(node, scale="1") if adds(node) else node,
    "a mean over 3": lambda node: replace(node, scale="1/3") if adds(node) else node,
    "divided twice": lambda node: replace(node, scale="1/2") if reduces(node) else node,
    "other ranks": lambda node: replace(node, group=OTHERS[node.group]) if reduces(node) else node,
}
"""An average of `M2,megatron` on four ranks, spoilt in all of its instructions of a kind."""


def adds(node: Instruction) -> TypeGuard[Compute]:
    return isinstance(node, Compute) and str(node.phase).endswith(".average")


def reduces(node: Instruction) -> TypeGuard[AllReduce]:
    return isinstance(node, AllReduce)


@pytest.mark.parametrize("name", SPOILT)
def test_a_wrong_average_of_replicas_is_refuted(name: str) -> None:
    program = lower_average(replicas_of(preset_plan("M2,megatron", cases.SMALL.model, 4, 8)))
    lists = tuple(tuple(map(SPOILT[name], nodes)) for nodes in program.programs)
    wrong = replace(program, programs=lists)
    assert wrong != program
    assert primepar.verify(wrong).verdict == "refuted"
    assert not primepar.check(wrong).equal


def test_a_plan_without_replicas_is_refused() -> None:
    plan = preset_plan("megatron", cases.SMALL.model, 4)
    with pytest.raises(PlanError) as caught:
        replicas_of(plan)
    assert str(caught.value) == (
        "plan: expected replicas to average, all operators with the same first cut of the rows, "
        "like M2,K2, got N4 of embedding: begin every sequence with M2, or leave the period "
        "out"
    )


def test_replicas_on_several_stages_are_refused() -> None:
    plan = preset_plan("1f1b:2x2,data", replace(cases.SMALL, layers=2).model, 4, 8)
    with pytest.raises(PlanError) as caught:
        replicas_of(plan)
    assert str(caught.value) == (
        "plan: expected none with a pipeline to average replicas, as a replica has devices on "
        "every stage, got 2 stages: leave the period out"
    )
