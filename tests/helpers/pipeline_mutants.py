"""Pipelines for tests: generated sizes, and programs with one change that is wrong or harmless."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import get_args

from msgspec.structs import replace

from primepar.partition.pipeline.actions import ScheduleName, chunks_of
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.program import pipeline_program
from primepar.schedule.program import Compute, Free, Instruction, IRecv, ISend, Program, Wait

SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def generated(seed: int) -> Program:
    """A program of a schedule and of sizes that a seed gives."""
    random = Random(seed)
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    stages, micro_batches = random.randint(1, 5), random.randint(1, 9)
    chunks = chunks_of(schedule)
    if schedule == "interleaved-1f1b":
        chunks, micro_batches = random.randint(2, 3), stages * random.randint(1, 3)
    pipeline = PipelineOrders.of(schedule, stages, micro_batches, chunks)
    return pipeline_program(pipeline, random.randint(1, 3), random.randint(1, 4))


def small(schedule: ScheduleName, stages: int = 2, micro_batches: int = 4) -> Program:
    """A small program of a schedule."""
    return pipeline_program(PipelineOrders.of(schedule, stages, micro_batches), 1, 2)


def with_rank(program: Program, rank: int, instructions: list[Instruction]) -> Program:
    """The program with another list of one rank."""
    programs = list(program.programs)
    programs[rank] = tuple(instructions)
    return replace(program, programs=tuple(programs))


def wrong_programs(program: Program) -> Iterator[tuple[str, Program]]:
    """(kind, program) of every change of a kind that makes a right program wrong."""
    for rank, instructions in enumerate(program.programs):
        nodes = list(instructions)
        for place in range(len(nodes)):
            for kind, changed in _changes(nodes, place):
                yield kind, with_rank(program, rank, changed)


def _changes(nodes: list[Instruction], place: int) -> Iterator[tuple[str, list[Instruction]]]:
    """The changes that begin at one instruction of a rank."""
    node, without = nodes[place], nodes[:place] + nodes[place + 1 :]
    match node:
        case Wait():
            yield "missing wait", without
        case Free(block=block) if block.startswith("x."):
            yield from (("stash freed early", changed) for changed in _freed_early(nodes, place))
        case ISend():
            yield from (("sends exchanged", changed) for changed in _exchanged(nodes, place))
        case IRecv():
            yield from (("receives exchanged", changed) for changed in _exchanged(nodes, place))
        case Compute(phase=phase):
            if str(phase).endswith(".gradient"):
                yield "dropped W", without
            swapped = _other_micro_batch(nodes, place, node)
            yield from (("swapped micro-batch", changed) for changed in swapped)


def _freed_early(nodes: list[Instruction], place: int) -> Iterator[list[Instruction]]:
    """The free of a stash moved before its last use by a product, if it has one on this rank."""
    free = nodes[place]
    assert isinstance(free, Free)
    for use in range(place - 1, -1, -1):
        node = nodes[use]
        if isinstance(node, Compute) and free.block in node.reads:
            yield [*nodes[:use], free, *nodes[use:place], *nodes[place + 1 :]]
            return


def _exchanged(nodes: list[Instruction], place: int) -> Iterator[list[Instruction]]:
    """A send or receive exchanged with the next one from or to the same rank."""
    first = nodes[place]
    assert isinstance(first, ISend | IRecv)
    for later in range(place + 1, len(nodes)):
        node = nodes[later]
        if type(node) is type(first) and getattr(node, "peer", None) == first.peer:
            changed = list(nodes)
            changed[place], changed[later] = node, first
            yield changed
            return


def _other_micro_batch(
    nodes: list[Instruction], place: int, node: Compute
) -> Iterator[list[Instruction]]:
    """A product that reads the rows of the next micro-batch, if the rank ever uses those."""
    (block,) = node.reads[:1]
    tensor, _, index = block.partition("[")
    number = int(index.partition(",")[0])
    swapped = f"{tensor}[{number + 1},0]"
    if any(swapped in getattr(node, "reads", ()) for node in nodes):
        reads = (swapped, *node.reads[1:])
        yield [*nodes[:place], replace(node, reads=reads), *nodes[place + 1 :]]


def harmless_programs(program: Program) -> Iterator[tuple[str, Program]]:
    """(kind, program) of changes that leave a program right."""
    for rank, instructions in enumerate(program.programs):
        nodes = list(instructions)
        receives = [place for place, node in enumerate(nodes) if isinstance(node, IRecv)]
        first = [nodes[place] for place in receives]
        rest = [node for node in nodes if not isinstance(node, IRecv)]
        if len({getattr(node, "peer", None) for node in first}) == 1:
            yield "receives posted at the start", with_rank(program, rank, [*first, *rest])
        ends = [node for node in nodes if isinstance(node, Wait) and node.request[:4] == "send"]
        sent = {node.request.removeprefix("send ") for node in ends}
        frees = [node for node in nodes if isinstance(node, Free) and node.block in sent]
        moved = [node for node in nodes if node not in ends and node not in frees]
        yield "sends ended last", with_rank(program, rank, [*moved, *ends, *frees])
        kept: list[Instruction] = [node for node in nodes if not isinstance(node, Free)]
        yield "nothing freed", with_rank(program, rank, kept)
