"""The plan that the settings of a run choose on a number of processes, and its batch.

This module does not import torch, so that wrong settings are refused before torch is loaded.
"""

from __future__ import annotations

from math import isqrt

from msgspec.structs import replace

from primepar.distributed.training.settings import BATCH, LEAST_VOCABULARY, Settings, shown
from primepar.errors import ConfigError, MeshError, PlanError, SequenceError
from primepar.partition import parse_sequence
from primepar.plan import Plan, load_plan
from primepar.plan.pipeline_layout import micro_batches
from primepar.plan.presets import names_preset, uniform_plan
from primepar.plan.replicas import replicas_of
from primepar.schedule import Sequence


def plan_of(settings: Settings, processes: int) -> Plan:
    """Return the plan for exactly `processes` devices: that of a file, or of one sequence.

    Raises `PlanError` if a file's plan is for another mesh, if the batch cannot be cut, or if there
    are no replicas that could be averaged. Raises `ConfigError` if a file's model cannot read
    bytes, if file and settings both have a batch, or if the sequence cuts a size unevenly, and
    `MeshError` for a sequence of another number of devices.
    """
    if settings.plan_file is None:
        plan = planned(settings, uniform_plan(settings.model, _sequence(settings, processes)))
    else:
        plan = planned(settings, load_plan(settings.plan_file))
        plan.check_ranks(processes)
        if plan.batch is not None and settings.batch is not None:
            raise ConfigError(
                f"{shown('batch')}: expected none together with the plan file {settings.plan}, "
                f"which has a batch of {plan.batch}, got {settings.batch}: leave it out, or take a "
                "plan for this one"
            )
        if plan.model.vocabulary < LEAST_VOCABULARY:
            raise ConfigError(
                f"--plan {settings.plan}: expected a model with a vocabulary of 256 or more, "
                f"one entry for each byte, got {plan.model.vocabulary}: take another model"
            )
    batch, positions = sizes_of(settings, plan)
    plan.check_batch(batch, positions)
    if settings.average_every is not None:
        replicas_of(plan).share(batch)
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


def sizes_of(settings: Settings, plan: Plan) -> tuple[int, int]:
    """Return the sequences of a batch, and the tokens of each."""
    return plan.batch or settings.batch or BATCH, plan.model.context


def name_of(settings: Settings, plan: Plan) -> str:
    """Return what a run is named after: the file of its plan, or its one sequence."""
    return str(settings.plan_file or plan.mesh)


def _sequence(settings: Settings, processes: int) -> Sequence:
    """Return the given sequence, or the default on a square number of processes: P{s}x{s}."""
    if settings.plan is not None and names_preset(settings.plan):
        raise ConfigError(
            f"--plan {settings.plan}: expected a plan file or a sequence like K,P2x2, got the name "
            f"of a preset: write its plan with primepar show {settings.plan} --model config.json "
            f"--devices {processes} -o plan.json"
        )
    side = isqrt(processes)
    if settings.plan is None and side * side != processes:
        raise MeshError(
            f"processes: expected a square number for the default sequence, got {processes}: "
            f"choose one of {processes} devices, --plan {examples(processes)}"
        )
    try:
        sequence = parse_sequence(settings.plan or f"P{side}x{side}")
    except SequenceError as error:
        raise SequenceError(
            f"--plan {settings.plan}: expected a plan file (.json), or a sequence like K,P2x2, "
            f"got neither: {error}"
        ) from None
    if sequence.ranks != processes:
        raise MeshError(
            f"sequence {sequence}: expected {sequence.ranks} processes, got {processes}: start "
            f"{sequence.ranks} (--ranks {sequence.ranks}, or mpirun -n {sequence.ranks}), or "
            f"choose a sequence of {processes}, --plan {examples(processes)}"
        )
    return sequence


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
