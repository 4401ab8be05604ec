"""What the explorer asks of a run: which properties, and whether its end is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, product
from typing import Any

from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import PRODUCTS, BlockName, Phase, parse_block, tensor_dims
from primepar.schedule.program import Alloc, Compute, Cut, Evict, Fetch, Free, Join, Program
from primepar.verify.explorer_contents import Content, outputs, own_data
from primepar.verify.explorer_machine import Machine

_LOCAL = Compute | Alloc | Free | Fetch | Evict


def asked(program: Program) -> frozenset[str]:
    """Properties that a program asks, as `verify_program` says."""
    sums, finals = outputs(program), [parse_block(b) for b in chain(*(program.final or ()))]
    summed = [name for name in finals if name and name.tensor in sums and not name.scratch]
    nodes = list(chain.from_iterable(program.programs))
    phases = {node.phase for node in nodes if isinstance(node, Compute) and node.phase}
    local = any(isinstance(node, _LOCAL) for node in nodes)
    kept = len(summed) < len(finals) or any(name.tensor == "dW" for name in summed)
    wanted = {
        "coverage": bool(program.grid),
        "placement": program.initial is not None or local,
        "completion": bool(program.grid) or bool(summed),
        "alignment": kept or len(phases) > 1,
        "deadlock-freedom": True,
        "races": True,
    }
    return frozenset(name for name, wants in wanted.items() if wants)


def judge_coverage(program: Program) -> set[str]:
    """Count every sub-operator of the grid."""
    for phase, grid in (program.grid or {}).items():
        done = Counter(
            tuple(sorted(node.sub_operator.items()))
            for node in chain.from_iterable(program.programs)
            if isinstance(node, Compute) and node.phase == phase and node.sub_operator is not None
        )
        if done != Counter(_cells(dict(grid))):
            return {"coverage"}
    return set()


def _cells(grid: dict[Any, int]) -> Iterator[tuple[tuple[str, int], ...]]:
    for index in product(*(range(count) for count in grid.values())):
        yield tuple(sorted(zip(grid, index, strict=True)))


def judge_end(machine: Machine) -> set[str]:
    """Properties that fail because of how a run ended."""
    failed = set()
    if machine.stuck() or machine.unmatched():
        failed.add("deadlock-freedom")
    if any(rank.flying for rank in machine.ranks) and not machine.stuck():
        failed.add("races")
    if machine.stuck():
        return failed
    finals = machine.program.final
    if finals is None:
        return failed | _judge_anywhere(machine)
    for rank, blocks in enumerate(finals):
        for block in blocks:
            failed |= _judge_final(machine, rank, block)
    return failed | _judge_lost(machine.program)


def _judge_lost(program: Program) -> set[str]:
    """A block that a phase of the grid makes is in `final`, or an instruction takes it."""
    taken = set(chain.from_iterable(program.final or ()))
    for node in chain.from_iterable(program.programs):
        if isinstance(node, Compute | Join):
            taken |= set(node.reads if isinstance(node, Compute) else node.blocks)
        elif isinstance(node, Cut):
            taken.add(node.block)
    meaning, made = Meaning(program), set()
    for phase in meaning.phases.values():
        if phase.grid is not None:
            for cell in product(*map(range, phase.grid.values())):
                made.add(phase.writes.block(dict(zip(phase.grid, cell, strict=True))))
    lost = set(map(meaning.place, made)) - set(map(meaning.place, taken))
    return {"completion"} if lost else set()


def _judge_anywhere(machine: Machine) -> set[str]:
    names = set()
    for phase, grid in (machine.program.grid or {}).items():
        for cell in _cells(dict(grid)):
            names.add(_home(phase, dict(cell)))
    for name in names:
        contents = [rank.memory.get(name) for rank in machine.ranks]
        if _due(machine, name) not in contents:
            return {"completion"}
    return set()


def _judge_final(machine: Machine, rank: int, block: str) -> set[str]:
    name, got = parse_block(block), machine.ranks[rank].memory.get(block)
    if not _is_sum(machine.program, name):
        if got is None:
            return {"alignment"}
        meant = name is not None and not name.scratch
        return {"alignment"} if meant and got != own_data(machine.program, block) else set()
    elsewhere = any(block in other.memory for other in machine.ranks)
    if got is None and block.startswith("dW") and elsewhere:
        return {"alignment"}
    return set() if got == _due(machine, block) else {"completion"}


def _is_sum(program: Program, name: BlockName | None) -> bool:
    return name is not None and name.tensor in outputs(program) and not name.scratch


def _home(phase: Phase, slices: dict[str, int]) -> str:
    tensor = PRODUCTS[phase].writes
    return f"{tensor}[{','.join(str(slices[d]) for d in tensor_dims(tensor) if d in slices)}]"


def _due(machine: Machine, block: str) -> Content:
    """Every product of a block once, and what the program found in it."""
    terms: set[Any] = set()
    program = machine.program
    for phase in PRODUCTS:
        if phase in (program.grid or {}):
            cells = set(_cells(dict((program.grid or {})[phase])))
        else:
            cells = {
                tuple(sorted(node.sub_operator.items()))
                for node in chain.from_iterable(program.programs)
                if isinstance(node, Compute) and node.phase == phase and node.sub_operator
            }
        terms |= {((phase, cell), 1) for cell in cells if _home(phase, dict(cell)) == block}
    if block in machine.before:
        terms |= own_data(program, block)
    return frozenset(terms)
