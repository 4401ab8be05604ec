"""Step programs on the ranks of one world: the same parameters and batch as the dense oracle."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
import sent_traffic
import torch
import torch.distributed as dist
from linear_cases import Arrays
from lowered_steps import lower_step
from nccl_rules.device_stream import DeviceStream
from numpy.typing import NDArray
from partitioned_cases import DRAW, drawn_batch, drawn_parameters

from primepar.distributed import Executor, Mesh
from primepar.distributed.runtime import executor
from primepar.distributed.runtime.running import Frame
from primepar.distributed.runtime.step_programs import lowered_by_first_rank
from primepar.models import ModelConfig
from primepar.operators import StepInputs, StepOptions, StepSettings, Until
from primepar.partition import parse_sequence
from primepar.passes import PASSES
from primepar.plan import Plan
from primepar.schedule import Program
from primepar.schedule.meaning import Meaning

BATCH, POSITIONS = 8, 4
Passes = bool | Literal["chunks"]


class Ended(NamedTuple):
    """The blocks of one rank after a step, and the counts of the executor."""

    blocks: Arrays
    untouched: bool
    peak: int
    sent: dict[str, Any]
    counted: dict[str, Any]
    traced: tuple[int, set[str]]
    """Elements sent and phases computed as recorded in the last run."""
    program: bytes
    """What it ran, from rank 0 alone."""


def whole_blocks(config: ModelConfig, program: Program) -> Arrays:
    """The tensors of a step, padded as the program has them; AdamW begins with zeros."""
    tokens, targets = drawn_batch(config, BATCH, POSITIONS)
    given = {"tokens": tokens.reshape(-1), "targets": targets.reshape(-1)}
    wholes: dict[str, NDArray[Any]] = {}
    for name, array in (drawn_parameters(config) | given).items():
        if name not in (program.tensors or {}):
            continue
        size = [line[-1] for line in (program.tensors or {})[name].cuts]
        array = array[None] if array.ndim < len(size) else array
        pairs = zip(size, array.shape, strict=True)
        wholes[name] = np.pad(array, [(0, padded - length) for padded, length in pairs])
    return wholes


def initial(config: ModelConfig, program: Program, rank: int) -> dict[str, torch.Tensor]:
    """The blocks of one rank before the program."""
    meaning, whole = Meaning(program), whole_blocks(config, program)
    blocks = {}
    for name in (program.initial or ())[rank]:
        place = meaning.place(name)
        assert place is not None
        part = whole[place.tensor][tuple(slice(*line) for line in place.box)]
        blocks[name] = torch.from_numpy(np.ascontiguousarray(part))
    return blocks


def program_of(plan: Plan, until: Until, passes: Passes) -> Program:
    """The program of a step, in chunks, after all passes, or only with its blocks freed."""
    options = StepOptions(chunks=2) if passes == "chunks" else StepOptions()
    chosen = tuple(PASSES) if passes else ("free-early",)
    return lower_step(plan, BATCH, POSITIONS, until, options, chosen)


def run_step(plan: Plan, until: Until, passes: Passes) -> Ended:
    """Steps of a plan with dropout, each from the same parameters; the last is recorded.

    Three on gloo, and one on an ordered mesh.
    """
    config = plan.model
    mesh = Mesh(parse_sequence(f"M{plan.ranks}"), dtype=torch.float64)
    program = lowered_by_first_rank(mesh, lambda: program_of(plan, until, passes))
    execute = Executor(mesh, program, StepSettings(config, BATCH, POSITIONS))
    given, before = (initial(config, program, mesh.rank) for _ in range(2))
    for last in (True,) if mesh.is_ordered else (False, False, True):
        if last:
            mesh.start_trace()
        sent_traffic.clear()
        blocks = execute(dict(given), StepInputs(DRAW))
    events = mesh.stop_trace()
    assert set(blocks) == set((program.final or ())[mesh.rank])
    return Ended(
        {name: block.numpy().copy() for name, block in blocks.items()},
        all(torch.equal(block, before[name]) for name, block in given.items()),
        execute.peak,
        {kind: elements for kind, elements, _ in execute.sent},
        dict(sent_traffic.ELEMENTS),
        (sum(event.elements for event in events), {event.phase for event in events} - {""}),
        b"" if mesh.rank else msgspec.json.encode(program),
    )


def run_ahead() -> None:
    """Let the host of every executor go on to the end of its list; then the stream runs."""
    run = executor.Executor._run

    def ahead(self: Executor, frame: Frame) -> None:
        with DeviceStream() as stream:
            run(self, frame)
            stream.synchronize()

    patch.object(executor.Executor, "_run", ahead).start()


def run_steps(asked: list[tuple[Plan, Until, Passes]]) -> list[Ended]:
    """All of them in one world; under NCCL's rules the host runs ahead."""
    if dist.get_backend() != "gloo":
        run_ahead()
    return [run_step(*arguments) for arguments in asked]
