"""The properties that the explorer decides of a run, and its checks of the end."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from oracle.contents import CellSums, same
from oracle.machine import Machine
from oracle.names import BlockNames, cell_of, cells_of
from primepar.schedule.program import Alloc, Compute, Cut, Evict, Fetch, Free, Join, Program

_LOCAL = Compute | Alloc | Free | Fetch | Evict | Cut | Join


def _ends(program: Program) -> set[str]:
    """All blocks that are listed at the end, on devices and hosts."""
    return set(chain(*(program.final or ()), *(program.host_final or ())))


STATIC = frozenset({"coverage", "memory", "traffic"})
"""Properties that are decided without a run."""


def asked(names: BlockNames) -> frozenset[str]:
    """Properties that a program asks, by the rules of `verify_program`."""
    program, finals = names.program, _ends(names.program)
    summed = {block for block in finals if names.maker(block) is not None}
    nodes = list(chain.from_iterable(program.programs))
    phases = {node.phase for node in nodes if isinstance(node, Compute) and node.phase}
    local = any(isinstance(node, _LOCAL) for node in nodes)
    kept = len(summed) < len(finals) or any(block.startswith("dW") for block in summed)
    conditions = {
        "coverage": bool(program.grid),
        "placement": program.initial is not None or local,
        "completion": bool(program.grid) or bool(summed) or _reads_a_sum(names),
        "alignment": kept or len(phases) > 1,
        "deadlock-freedom": True,
        "races": True,
        "memory": program.memory is not None,
        "traffic": program.traffic is not None,
    }
    return frozenset(name for name, is_asked in conditions.items() if is_asked)


def _reads_a_sum(names: BlockNames) -> bool:
    """Whether a product takes what a phase of the program makes."""
    products = (
        (names.meaning.phases[node.phase], node.sub_operator)
        for node in chain.from_iterable(names.program.programs)
        if isinstance(node, Compute) and node.phase and node.sub_operator is not None
    )
    return any(
        names.maker(read.block(cell)) is not None
        for phase, cell in products
        for read in phase.reads
    )


def wrong_coverage(program: Program) -> set[str]:
    """Count every sub-operator of the grid."""
    for phase, grid in (program.grid or {}).items():
        done = Counter(
            cell_of(node.sub_operator)
            for node in chain.from_iterable(program.programs)
            if isinstance(node, Compute)
            and node.phase == phase
            and node.sub_operator is not None
            and not node.again
        )
        if done != Counter(cells_of(grid)):
            return {"coverage"}
    return set()


def wrong_end(machine: Machine) -> set[str]:
    """Properties that fail because of how a run ended."""
    failed = set()
    if machine.stuck() or machine.unmatched():
        failed.add("deadlock-freedom")
    if any(rank.in_flight for rank in machine.ranks) and not machine.stuck():
        failed.add("races")
    if "deadlock-freedom" in failed:  # no end that could be right, also where sends are buffered
        return failed
    finals = machine.program.final
    if finals is None:
        return failed | _unfinished_anywhere(machine)
    for rank, blocks in enumerate(finals):
        for block in blocks:
            failed |= _wrong_final(machine, rank, block)
    for state, blocks in zip(machine.ranks, machine.program.host_final or (), strict=False):
        failed |= {_wrong_on_host(machine, state.host.get(block), block) for block in blocks} - {""}
    failed |= _lost_outputs(machine.names)
    if not failed and not machine.failed and not wrong_coverage(machine.program):
        failed |= _never_whole(machine)
    return failed


def _never_whole(machine: Machine) -> set[str]:
    """Completion, if some part of an output is whole neither at the end nor where it is read.

    It is asked only of a program in which nothing else is wrong.
    """
    corners = {
        (place.tensor, corner)
        for block in machine.finished | _ends(machine.program)
        if (place := machine.names.meaning.place(block)) is not None
        for corner in machine.names.cells(block)[1]
    }
    for block in _grid_outputs(machine.names):
        place = machine.names.meaning.place(block)
        assert place is not None
        if any((place.tensor, corner) not in corners for corner in machine.names.cells(block)[1]):
            return {"completion"}
    return set()


def _lost_outputs(names: BlockNames) -> set[str]:
    """Completion, if some output of the grid is neither in `final` nor read."""
    taken = _ends(names.program)
    for node in chain.from_iterable(names.program.programs):
        if isinstance(node, Compute | Join):
            taken |= set(node.reads if isinstance(node, Compute) else node.blocks)
        elif isinstance(node, Cut):
            taken.add(node.block)
    lost = set(map(names.meaning.place, _grid_outputs(names))) - set(
        map(names.meaning.place, taken)
    )
    return {"completion"} if lost else set()


def _grid_outputs(names: BlockNames) -> set[str]:
    """Blocks that the phases of the grid write."""
    return {
        phase.writes.block(dict(cell))
        for phase in names.meaning.phases.values()
        if phase.grid is not None
        for cell in cells_of(phase.grid)
    }


def _unfinished_anywhere(machine: Machine) -> set[str]:
    """Completion, if some output of the grid is finished on no rank; used without `final`."""
    for name in _grid_outputs(machine.names):
        contents = [rank.memory[name] for rank in machine.ranks if name in rank.memory]
        if not any(same(content, machine.required(name)) for content in contents):
            return {"completion"}
    return set()


def _wrong_final(machine: Machine, rank: int, block: str) -> set[str]:
    names, got = machine.names, machine.ranks[rank].memory.get(block)
    if names.maker(block) is None:
        if got is None:
            return {"alignment"}
        has_meaning = names.meaning.place(block) is not None
        return {"alignment"} if has_meaning and not same(got, names.datum(block)) else set()
    if got is None:
        elsewhere = any(block in rank_state.memory for rank_state in machine.ranks)
        return {"alignment"} if block.startswith("dW") and elsewhere else {"completion"}
    return set() if same(got, machine.required(block)) else {"completion"}


def _wrong_on_host(machine: Machine, got: CellSums | None, block: str) -> str:
    """The property that a block of `host_final` breaks; empty if it is right."""
    made = machine.names.maker(block) is not None
    has_meaning = machine.names.meaning.place(block) is not None
    if got is not None and (not has_meaning or same(got, machine.required(block))):
        return ""
    return "completion" if made else "alignment"
