"""Which plan or sequence the settings of a run choose on a number of processes, and its batch.

This module does not import torch, so that wrong settings are refused before torch is loaded.
"""

from __future__ import annotations

from math import isqrt, lcm

from msgspec.structs import replace

from primepar.distributed.training.settings import BATCH, LEAST_VOCABULARY, Settings, shown
from primepar.errors import ConfigError, MeshError, PlanError, SequenceError
from primepar.partition import parse_sequence
from primepar.plan import Plan, RowCuts, load_plan
from primepar.plan.pipeline_layout import micro_batches
from primepar.plan.presets import names_preset
from primepar.plan.replicas import check_replicas
from primepar.schedule import Sequence


def layout_of(settings: Settings, processes: int) -> Plan | Sequence:
    """Return the plan for exactly `processes` devices, or the sequence without a plan file.

    Raises `PlanError` if the plan is for another mesh, does not cut the batch, or has no
    replicas that could be averaged. Raises `ConfigError` if its model cannot read bytes, or if
    plan and settings both have a batch.
    """
    layout = (
        sequence_of(settings, processes)
        if settings.plan_file is None
        else _plan(settings, processes)
    )
    if settings.average_every is not None:
        check_replicas(layout, sizes_of(settings, layout)[0])
    return layout


def _plan(settings: Settings, processes: int) -> Plan:
    assert settings.plan_file is not None
    plan = planned(settings, load_plan(settings.plan_file))
    plan.check_ranks(processes)
    if plan.batch is None:
        plan.check_batch(sizes_of(settings, plan)[0], plan.model.context)
    elif settings.batch is not None:
        raise ConfigError(
            f"{shown('batch')}: expected none together with the plan file {settings.plan}, which "
            f"has a batch of {plan.batch}, got {settings.batch}: leave it out, or take a plan for "
            "this one"
        )
    if plan.model.vocabulary < LEAST_VOCABULARY:
        raise ConfigError(
            f"--plan {settings.plan}: expected a model with a vocabulary of 256 or more, "
            f"one entry for each byte, got {plan.model.vocabulary}: take another model"
        )
    return plan


def planned(settings: Settings, plan: Plan) -> Plan:
    """Return a plan with what the settings add to it to take less memory.

    Micro-batches are those of a pipeline of one stage. Raises `ConfigError` if the plan has some
    already, if there are too many, or for shards together with averages of replicas.
    """
    if settings.recompute != "none":
        plan = replace(plan, recompute=settings.recompute)
    if settings.sharded:
        plan = replace(plan, sharded_optimizer=True)
    if plan.sharded_optimizer and settings.average_every is not None:
        raise ConfigError(
            f"{shown('average_every')}: expected none together with a sharded optimizer, as "
            f"replicas with moments of their own cannot share them, got {settings.average_every}: "
            "leave one of the two out"
        )
    if settings.accumulate == 1:
        return plan
    if plan.pipeline is not None:
        raise ConfigError(
            f"{shown('accumulate')}: expected none together with the plan file {settings.plan}, "
            f"whose pipeline has {plan.micro_batches} micro-batches, got {settings.accumulate}: "
            "leave it out, or change micro_batches in the plan"
        )
    try:
        return replace(plan, pipeline=micro_batches(settings.accumulate))
    except PlanError as error:
        raise ConfigError(f"{shown('accumulate')}: {error}") from None


def sizes_of(settings: Settings, layout: Plan | Sequence) -> tuple[int, int]:
    """Return the sequences of a batch, and the tokens of each."""
    batch = BATCH if settings.batch is None else settings.batch
    if isinstance(layout, Sequence):
        return batch, settings.model.context
    return layout.batch or batch, layout.model.context


def sequence_of(settings: Settings, processes: int) -> Sequence:
    """Return the sequence over exactly `processes` devices, which fits the model.

    By default it is P{s}x{s} on s * s processes. Raises `MeshError`, or `ConfigError` if a size
    is not a multiple of its number of slices.
    """
    sequence = _sequence(settings, processes)
    if sequence.ranks != processes:
        raise MeshError(
            f"sequence {sequence}: expected {sequence.ranks} processes, got {processes}: start "
            f"{sequence.ranks} (--ranks {sequence.ranks}, or mpirun -n {sequence.ranks}), or "
            f"choose a sequence of {processes}, --plan {examples(processes)}"
        )
    _check_divided(settings, sequence)
    return sequence


def _check_divided(settings: Settings, sequence: Sequence) -> None:
    """Raise `ConfigError` unless the slices of rows, heads and hidden are equal."""
    rows, inputs, columns = (sequence.grid[dim] for dim in ("M", "N", "K"))
    attention = {f"sequence {sequence}": rows}
    model, cuts = settings.model, RowCuts(rows, attention, settings.accumulate)
    refusal = cuts.refusal(sizes_of(settings, sequence)[0], model.context)
    if refusal is not None:
        raise ConfigError(f"{shown('batch')}: {refusal}, or another --plan")
    divided = {
        "heads": (model.heads, columns),
        "hidden": (model.hidden, lcm(inputs, columns)),
    }
    for name, (size, slices) in divided.items():
        if size % slices:
            raise ConfigError(
                f"{shown(name)}: expected a multiple of {slices} for sequence {sequence}, "
                f"got {size}: take {-(-size // slices) * slices}, or another --plan"
            )


def _sequence(settings: Settings, processes: int) -> Sequence:
    """Return the given sequence, or the default on a square number of processes."""
    if settings.plan is not None and names_preset(settings.plan):
        raise ConfigError(
            f"--plan {settings.plan}: expected a plan file or a sequence like K,P2x2, got the name "
            f"of a preset: write its plan with primepar show {settings.plan} --model config.json "
            f"--devices {processes} -o plan.json"
        )
    if settings.plan is not None:
        try:
            return parse_sequence(settings.plan)
        except SequenceError as error:
            raise SequenceError(
                f"--plan {settings.plan}: expected a plan file (.json), or a sequence like K,P2x2, "
                f"got neither: {error}"
            ) from None
    side = isqrt(processes)
    if side * side != processes:
        raise MeshError(
            f"processes: expected a square number for the default sequence, got {processes}: "
            f"choose one of {processes} devices, --plan {examples(processes)}"
        )
    return parse_sequence(f"P{side}x{side}")


def examples(devices: int) -> str:
    """Return a few sequences over exactly `devices` devices, as a list in words."""
    names = [f"{label}{devices}" for label in "KNM"]
    side = isqrt(devices)
    if side * side == devices:
        names.insert(0, f"P{side}x{side}")
    factor = next((f for f in range(2, side + 1) if devices % f == 0), None)
    if factor is not None:
        names.append(f"M{factor},K{devices // factor}")
    return f"{', '.join(names[:-1])} or {names[-1]}"
