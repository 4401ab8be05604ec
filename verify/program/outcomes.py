"""Placement, completion and alignment: the broken reads of a run, and the state at its end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from primepar.schedule.meaning import Phase
from primepar.schedule.program import Compute, Cut, Join, Program
from primepar.verify.deadline import in_time
from primepar.verify.program.expected import Expected
from primepar.verify.program.miscount import Miscount, content_text
from primepar.verify.program.values import (
    GONE,
    ON_HOST,
    OPERANDS,
    SIZE,
    UNFETCHED,
    Broken,
    SymbolicRun,
)


def first_broken(run: SymbolicRun, name: str) -> str | None:
    """The first read that breaks a property, as a sentence; None if none does."""
    for broken in run.broken:
        if broken.property != name:
            continue
        if broken.got is None:
            return _absent(broken)
        if name == "completion":
            what = Miscount(run, broken.want).of(broken.got, broken.block)
            return f"{broken.where}, which reads {broken.block} for the {broken.purpose}: {what}"
        return _other_data(run.expected, broken)
    return None


def _absent(broken: Broken) -> str:
    if broken.purpose == OPERANDS:
        return f"{broken.where}: expected to read {broken.block}, {OPERANDS}: list these"
    if broken.purpose == SIZE:
        return (
            f"{broken.where}: expected data of the size of {broken.block} in it, got data of "
            "another size: cut or join it before"
        )
    if broken.purpose == ON_HOST:
        memory, fix = "host memory", "evict it before"
    elif broken.purpose == GONE:
        memory, fix = "memory", "free or evict it later"
    elif broken.purpose == UNFETCHED:
        memory, fix = "memory", "fetch it from host memory before"
    else:
        memory, fix = "memory", "receive or compute it before, or list it in initial"
    return f"{broken.where}: expected {broken.block} in this rank's {memory}, got none there: {fix}"


def _other_data(expected: Expected, broken: Broken) -> str:
    want = broken.want
    fix = f"read {want}" if broken.block != want else f"send {want} here before"
    return (
        f"{broken.where}: expected the data of {want} in {broken.block} for the {broken.purpose}, "
        f"got that of {content_text(expected, broken.got or frozenset())}: {fix}"
    )


def output_blocks(expected: Expected, phase: Phase) -> Iterator[str]:
    """Yield the names of the blocks that a phase of the grid writes."""
    dims = [dim for dim, _ in phase.writes.entries if dim]
    grid = phase.grid or {}
    names = (
        phase.writes.block(dict(zip(dims, slices, strict=True)))
        for slices in product(*(range(grid[dim]) for dim in dims))
    )
    yield from dict.fromkeys(names)


def complete(program: Program, run: SymbolicRun) -> str | None:
    """The first read or end of a sum that is not finished; None if all are.

    With `final` the ends are the blocks that it lists, each on its rank. An output block of the
    grid that is not listed must be read. Without `final` the ends are all output blocks of the
    grid, each on any rank.
    """
    wrong = first_broken(run, "completion")
    if wrong is not None:
        return wrong
    if program.final is None:
        return _complete_somewhere(run)
    for rank, blocks in enumerate(program.final):
        for block in in_time(blocks):
            if run.expected.meaning.maker(block) is None:
                continue
            if block not in run.device[rank] and block.startswith("dW") and run.holders.get(block):
                continue
            wrong = _unfinished(run, rank, block, f"rank {rank}, final {block}")
            if wrong is not None:
                return wrong
    return _unfinished_on_host(program, run) or _lost(program, run.expected)


def _unfinished_on_host(program: Program, run: SymbolicRun) -> str | None:
    for rank, block in _host_ends(program):
        if run.expected.meaning.maker(block) is None:
            continue
        where, content = f"rank {rank}, host_final {block}", run.host[rank].get(block)
        if content is None:
            return (
                f"{where}: expected the finished sum in host memory, got no such block there: "
                "evict it after its last use"
            )
        if not content.holds(run.expected.sum(block)):
            return f"{where}: {Miscount(run, block).of(content.parts, block)}"
    return None


def _host_ends(program: Program) -> Iterator[tuple[int, str]]:
    for rank, blocks in enumerate(program.host_final or ()):
        yield from ((rank, block) for block in in_time(blocks))


def _lost(program: Program, expected: Expected) -> str | None:
    """The first output block of the grid that is neither in `final` nor read."""
    kept = [block for blocks in program.final or () for block in blocks]
    kept += [block for _, block in _host_ends(program)]
    for node in (node for nodes in program.programs for node in nodes):
        match node:
            case Compute(reads=blocks) | Join(blocks=blocks):
                kept += blocks
            case Cut(block=block):
                kept.append(block)
    places = {expected.meaning.place(block) for block in kept}
    for phase in expected.meaning.phases.values():
        for block in in_time(output_blocks(expected, phase) if phase.grid is not None else ()):
            if expected.meaning.place(block) not in places:
                return (
                    f"{block}: expected it in final on some rank, or read, got neither: list it "
                    "where it ends, or give it a home"
                )
    return None


def _unfinished(run: SymbolicRun, rank: int, block: str, where: str) -> str | None:
    content = run.device[rank].get(block)
    if content is None:
        return (
            f"{where}: expected the finished sum, got no such block: "
            "keep it on this rank, or send it here"
        )
    if content.holds(run.expected.sum(block)):
        return None
    return f"{where}: {Miscount(run, block).of(content.parts, block)}"


def _complete_somewhere(run: SymbolicRun) -> str | None:
    for phase in run.expected.meaning.phases.values():
        if phase.grid is None:
            continue
        for block in in_time(output_blocks(run.expected, phase)):
            wrong: list[str] = []
            for rank in run.holders.get(block, ()):
                what = _unfinished(run, rank, block, f"rank {rank}, {block} at the end")
                if what is None:
                    break
                wrong.append(what)
            else:
                nowhere = f"{block}: expected the block on some rank at the end, got it on none"
                return wrong[0] if wrong else f"{nowhere}: keep it where it is summed"
    return None


def misaligned(program: Program, run: SymbolicRun) -> str | None:
    """The first final block that is elsewhere or holds other data; None if all are right.

    The only sum that is checked is the weight gradient, which must end where the weight starts.
    """
    for rank, blocks in enumerate(program.final or ()):
        for block in in_time(blocks):
            wrong = _elsewhere(run, rank, block)
            if wrong is not None:
                return f"rank {rank}, final {block}: {wrong}"
    for rank, block in _host_ends(program):
        wrong = _other_on_host(run, rank, block)
        if wrong is not None:
            return f"rank {rank}, host_final {block}: {wrong}"
    return None


def _other_on_host(run: SymbolicRun, rank: int, block: str) -> str | None:
    if run.expected.meaning.maker(block) is not None:
        return None
    content = run.host[rank].get(block)
    if content is None:
        return (
            "expected it in host memory at the end, got it not there: evict it after its last use"
        )
    has_meaning = run.expected.meaning.place(block) is not None
    if not has_meaning or content.parts == run.expected.sum(block):
        return None
    text = content_text(run.expected, content.parts)
    return f"expected its own data at the end, got {text}: evict {block} itself"


def _elsewhere(run: SymbolicRun, rank: int, block: str) -> str | None:
    content, made = run.device[rank].get(block), run.expected.meaning.maker(block) is not None
    if content is None:
        holders = run.holders.get(block)
        if made and not (block.startswith("dW") and holders):
            return None
        actual = f"it on rank {holders[0]}" if holders else "it on no rank"
        return f"expected it at the end, got {actual}: send it here"
    has_meaning = run.expected.meaning.place(block) is not None
    if made or not has_meaning or content.parts == run.expected.sum(block):
        return None
    text = content_text(run.expected, content.parts)
    return f"expected its own data at the end, got {text}: send {block} here"
