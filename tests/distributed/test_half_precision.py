"""Copies of parameters in float32, and scaled losses: on one process, on four, and emulated."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from math import isfinite

import numpy as np
import pytest
from distributed_ranks import on_ranks
from half_precision_ranks import HalfCase, ShortRun, runs
from msgspec.structs import replace
from partitioned_cases import drawn_batch, drawn_parameters, farthest
from profiles import IS_LONG
from step_cases import SMALL, place, refuted, spoilt

from primepar.models import GPTConfig
from primepar.operators import Optimizer, StepOptions, lower_step
from primepar.partition import parse_sequence
from primepar.plan import preset_plan
from primepar.plan.presets import uniform_plan
from primepar.reference.emulator.model import EmulatedModel
from primepar.schedule.program import Compute, Instruction

MODEL = GPTConfig(layers=1, hidden=32, heads=4, context=8)
Spoil = Callable[[int, list[Instruction]], None]
OVERFLOW = 2.0**60
SCALES = (2.0**10, OVERFLOW, 2.0**10, 2.0**4)
SEQUENCES = ("P2x2", "M2,K2")


def case(sequence: str, dtype: str) -> HalfCase:
    scales = SCALES if dtype == "float16" else (None,) * 4
    return HalfCase(uniform_plan(MODEL, parse_sequence(sequence)), dtype, scales)


@cache
def on_one(dtype: str) -> ShortRun:
    return case("", dtype).run()


@cache
def on_four() -> dict[tuple[str, str], list[ShortRun]]:
    """(sequence, dtype) -> the run on every rank."""
    keys = [(sequence, dtype) for sequence in SEQUENCES for dtype in ("bfloat16", "float16")]
    by_rank = on_ranks(4, runs, [case(*key) for key in keys])
    return {key: list(found) for key, found in zip(keys, zip(*by_rank, strict=True), strict=True)}


def everyone(dtype: str) -> list[ShortRun]:
    return [on_one(dtype), *(run for key, ranks in on_four().items() if key[1] == dtype
                             for run in ranks)]  # fmt: skip


def test_an_overflow_skips_the_step_on_all_ranks_and_the_run_goes_on() -> None:
    for run in everyone("float16"):
        assert run.changed == [True, False, True, True]
        assert [isfinite(norm) for norm in run.norms] == run.changed
        assert run.losses == pytest.approx(on_one("float16").losses, rel=1e-3)
        finite = [norm for norm in run.norms if isfinite(norm)]
        assert finite == pytest.approx(
            [n for n in on_one("float16").norms if isfinite(n)], rel=0.01
        )


def test_the_parameters_are_their_copies_rounded() -> None:
    for dtype in ("bfloat16", "float16"):
        assert all(run.rounded for run in everyone(dtype))
        assert all(run.moved[1] >= run.moved[0] > 0 for run in everyone(dtype))


def test_four_processes_train_as_one_in_bfloat16() -> None:
    for run in everyone("bfloat16"):
        assert run.changed == [True] * 4
        assert run.losses == pytest.approx(on_one("bfloat16").losses, rel=1e-3)
        assert run.norms == pytest.approx(on_one("bfloat16").norms, rel=0.02)


def test_copies_move_where_parameters_in_float32_move() -> None:
    """At a rate of 1e-5, where few elements of a parameter in bfloat16 move without a copy."""
    plan = uniform_plan(MODEL, parse_sequence(""))
    exact, copied, short = (
        HalfCase(plan, dtype, (None,) * 4, 1e-5, masters).run()
        for dtype, masters in (("float32", False), ("bfloat16", True), ("bfloat16", False))
    )
    assert copied.moved[1] > 0.999 * exact.moved[0]
    assert short.moved[0] < 0.2 * exact.moved[0]


# Emulated, in float64


@pytest.mark.parametrize(
    ("optimizer", "clip"), list(product(("adamw", "sgd"), (0.5, None)))[: None if IS_LONG else 1]
)
def test_a_scaled_loss_gives_the_same_parameters(optimizer: Optimizer, clip: float | None) -> None:
    plan = preset_plan("primepar", SMALL["gpt2"], 4)
    plain, scaled = (
        EmulatedModel(plan.model, plan, drawn_parameters(plan.model), optimizer, masters)
        for masters in (False, True)
    )
    for _ in range(2):
        batch = drawn_batch(plan.model, 8, 4)
        known = plain.update(*batch, 0.01, clip=clip)
        step = scaled.update(*batch, 0.01, clip=clip, loss_scale=2.0**16)
        assert (step.loss, step.norm) == pytest.approx((known.loss, known.norm), rel=1e-12)
        assert farthest(scaled.parameters, plain.parameters) < 1e-12
    left = {**scaled.parameters, **scaled.moments}
    with np.errstate(over="ignore"):
        skipped = scaled.update(*batch, 0.01, clip=clip, loss_scale=2.0**700)
    assert skipped.norm is not None
    assert not isfinite(skipped.norm)
    assert scaled.updates == 2
    for name, array in {**scaled.parameters, **scaled.moments}.items():
        assert np.array_equal(array, left[name]), name


# Wrong steps are refuted


def stale_copy(rank: int, instructions: list[Instruction]) -> None:
    """Make the new weight of the old copy."""
    index = place(instructions, "norm.weight.update")
    node = instructions[index]
    assert isinstance(node, Compute)
    instructions[index] = replace(node, reads=("norm.weight.master[0]",))


def unsummed_norm(rank: int, instructions: list[Instruction]) -> None:
    """Let each rank decide by its own norm whether it skips."""
    names = [node for node in instructions if "squares[0]" in str(getattr(node, "block", ""))]
    instructions.remove(names[0])


def not_rounded(rank: int, instructions: list[Instruction]) -> None:
    """Update the copy alone."""
    del instructions[place(instructions, "norm.weight.update")]


@pytest.mark.parametrize("spoil", [stale_copy, unsummed_norm, not_rounded])
def test_a_wrong_update_of_copies_is_refuted(spoil: Spoil) -> None:
    plan = preset_plan("megatron", SMALL["gpt2"], 2)
    options = StepOptions(masters=True, skips=True)
    program = lower_step(plan, 8, 4, options=options, passes=())
    assert refuted(program) == {}
    assert refuted(spoilt(program, spoil)) != {}
