"""What the explorer asks of a run: which properties, and whether its end is right."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from primepar.schedule.program import Alloc, Compute, Cut, Evict, Fetch, Free, Join, Program
from primepar.verify.explorer.contents import same
from primepar.verify.explorer.machine import Machine
from primepar.verify.explorer.names import BlockNames, cell_of, cells_of

_LOCAL = Compute | Alloc | Free | Fetch | Evict | Cut | Join


STATIC = frozenset({"coverage", "memory", "traffic"})
"""Properties that are judged without a run."""


def asked(names: BlockNames) -> frozenset[str]:
    """Properties that a program asks, as `verify_program` says."""
    program, finals = names.program, set(chain(*(names.program.final or ())))
    summed = {block for block in finals if names.maker(block) is not None}
    nodes = list(chain.from_iterable(program.programs))
    phases = {node.phase for node in nodes if isinstance(node, Compute) and node.phase}
    local = any(isinstance(node, _LOCAL) for node in nodes)
    kept = len(summed) < len(finals) or any(block.startswith("dW") for block in summed)
    wanted = {
        "coverage": bool(program.grid),
        "placement": program.initial is not None or local,
        "completion": bool(program.grid) or bool(summed),
        "alignment": kept or len(phases) > 1,
        "deadlock-freedom": True,
        "races": True,
        "memory": program.memory is not None,
        "traffic": program.traffic is not None,
    }
    return frozenset(name for name, wants in wanted.items() if wants)


def judge_coverage(program: Program) -> set[str]:
    """Count every sub-operator of the grid."""
    for phase, grid in (program.grid or {}).items():
        done = Counter(
            cell_of(node.sub_operator)
            for node in chain.from_iterable(program.programs)
            if isinstance(node, Compute) and node.phase == phase and node.sub_operator is not None
        )
        if done != Counter(cells_of(grid)):
            return {"coverage"}
    return set()


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
    return failed | _judge_lost(machine.names)


def _judge_lost(names: BlockNames) -> set[str]:
    """A block that a phase of the grid makes is in `final`, or an instruction takes it."""
    taken = set(chain(*(names.program.final or ())))
    for node in chain.from_iterable(names.program.programs):
        if isinstance(node, Compute | Join):
            taken |= set(node.reads if isinstance(node, Compute) else node.blocks)
        elif isinstance(node, Cut):
            taken.add(node.block)
    lost = set(map(names.meaning.place, _made(names))) - set(map(names.meaning.place, taken))
    return {"completion"} if lost else set()


def _made(names: BlockNames) -> set[str]:
    """Blocks that the phases of the grid make."""
    return {
        phase.writes.block(dict(cell))
        for phase in names.meaning.phases.values()
        if phase.grid is not None
        for cell in cells_of(phase.grid)
    }


def _judge_anywhere(machine: Machine) -> set[str]:
    """Without `final` every block that a phase makes must be finished on some rank."""
    for name in _made(machine.names):
        held = [rank.memory[name] for rank in machine.ranks if name in rank.memory]
        if not any(same(content, machine.due(name)) for content in held):
            return {"completion"}
    return set()


def _judge_final(machine: Machine, rank: int, block: str) -> set[str]:
    names, got = machine.names, machine.ranks[rank].memory.get(block)
    if names.maker(block) is None:
        if got is None:
            return {"alignment"}
        meant = names.meaning.place(block) is not None
        return {"alignment"} if meant and not same(got, names.datum(block)) else set()
    if got is None:
        elsewhere = any(block in other.memory for other in machine.ranks)
        return {"alignment"} if block.startswith("dW") and elsewhere else {"completion"}
    return set() if same(got, machine.due(block)) else {"completion"}
