"""Programs as files (versioned JSON) and as text for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from primepar.errors import ProgramError
from primepar.files import write_text
from primepar.reading import read_json
from primepar.schedule.effects import blocks_named
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    BLOCK_LISTS,
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Collective,
    Compute,
    Cut,
    Gather,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    Recv,
    ReduceScatter,
    Scatter,
    Send,
    Wait,
)

# Blocks that a program names, against the tensors that it cuts.


def check_blocks(program: Program) -> None:
    """Raise `ProgramError` if a name, or a sub-operator, is of a block outside its tensor's cuts.

    Programs without `tensors` have nothing to be checked against.
    """
    if not program.tensors:
        return
    meaning = Meaning(program)
    for name in BLOCK_LISTS:
        for rank, blocks in enumerate(getattr(program, name) or ()):
            _place(meaning, blocks, f"{name}[{rank}]")
    for phase, grid in (program.grid or {}).items():
        last = {dim: slices - 1 for dim, slices in grid.items()}
        _sub_operator(meaning, phase, last, f"phases.{phase} at the end of its grid")
    for rank, instructions in enumerate(program.programs):
        for index, node in enumerate(instructions):
            where = f"programs[{rank}][{index}]"
            _place(meaning, blocks_named(node), where)
            if isinstance(node, Compute) and node.phase is not None:
                _sub_operator(meaning, node.phase, node.sub_operator or {}, where)


def _sub_operator(meaning: Meaning, phase: str, slices: dict[str, int], where: str) -> None:
    known = meaning.phases[phase]
    _place(meaning, (template.block(slices) for template in (*known.reads, known.writes)), where)


def _place(meaning: Meaning, blocks: Iterator[str] | tuple[str, ...], where: str) -> None:
    for block in blocks:
        try:
            meaning.place(block.rstrip("'"))
        except ProgramError as error:
            raise ProgramError(f"{error} in {where}: cut it finer, or name another") from None


_OPS = (
    "compute, send, recv, isend, irecv, wait, group, all_reduce, reduce, broadcast, all_gather, "
    "reduce_scatter, all_to_all, gather, scatter, barrier, alloc, free, fetch, evict, cut, join"
)


def load_program(path: Path) -> Program:
    """Read a program file. Raises `ProgramError` naming the JSON path and the fix."""
    program = read_json(path, Program, "a program file", ProgramError, _advice)
    try:
        check_blocks(program)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from None
    return program


def _advice(error: Exception, text: bytes) -> str:
    """msgspec's message with what to write instead, where that is not in it already."""
    message = " ".join(str(error).split())
    message = re.sub(
        "Expected `str` matching regex '\\^\\[\\^.*'",
        "Expected a name without control characters",
        message,
    )
    if re.search(r"Invalid value '[^']*' - at `\$\.programs.*\.op`", message):
        return f"{message}: write one of {'send, recv' if '.body[' in message else _OPS}"
    if "unknown field" in message and " - at" not in message and b'"format"' not in text:
        return (
            'expected a file with "format": "primepar-program" or "primepar-plan", got an object '
            "without a format: a config.json goes with --model"
        )
    return message


def save_program(program: Program, path: Path) -> None:
    """Write a program file, replacing an old one atomically; one instruction per line."""
    write_text(path, program_json(program), ProgramError)


def program_json(program: Program) -> str:
    """JSON text of a program, keys in fixed order, one instruction per line so that diffs read."""
    fields = msgspec.to_builtins(program)
    lines = []
    for key, value in fields.items():
        if key == "programs":
            ranks = [
                "[\n" + ",\n".join(f"    {_compact(node)}" for node in rank) + "\n  ]"
                if rank
                else "[]"
                for rank in value
            ]
            lines.append('"programs": [\n  ' + ",\n  ".join(ranks) + "\n]")
        else:
            lines.append(f"{_compact(key)}: {_compact(value)}")
    return "{" + ",\n".join(lines) + "}\n"


def _compact(value: object) -> str:
    return msgspec.json.encode(value).decode()


def program_text(program: Program) -> str:
    """The program for people: one paragraph per rank, one line per instruction."""
    paragraphs = []
    for rank, instructions in enumerate(program.programs):
        lines = [f"rank {rank}"]
        if program.initial is not None:
            lines.append(f"  has      {' '.join(program.initial[rank])}")
        if program.host_initial is not None:
            lines.append(f"  on host  {' '.join(program.host_initial[rank])}")
        lines += [f"  {instruction_text(instruction)}" for instruction in instructions]
        if program.final is not None:
            lines.append(f"  ends     {' '.join(program.final[rank])}")
        if program.host_final is not None:
            lines.append(f"  on host  {' '.join(program.host_final[rank])}")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs) + "\n"


def instruction_text(instruction: Instruction) -> str:
    """One line for one instruction, `isend    I[0,0] -> 1`."""
    match instruction:
        case Compute(reads=reads, accumulates=block, phase=phase, scale=scale):
            product = " * ".join(reads) if phase else " + ".join(reads)
            if scale != "1" and phase is None and len(reads) > 1:
                product = f"({product})"
            again = " again" * instruction.again
            return f"{phase or 'add':8} {block} += {_scale(instruction)}{product}{again}"
        case Send() | ISend():
            return f"{_op(instruction):8} {instruction.block} -> {instruction.peer}"
        case Recv() | IRecv():
            return f"{_op(instruction):8} {instruction.block} <- {instruction.peer}"
        case Wait(request=request):
            return f"wait     {request}"
        case Group(body=body):
            inner = "; ".join(map(instruction_line, body))
            return f"group    {inner}" + ", posted" * (instruction.request is not None)
        case _:
            return _other_text(instruction)


def instruction_line(instruction: Instruction) -> str:
    """The same without the column that lists align, `isend I[0,0] -> 1`."""
    return " ".join(instruction_text(instruction).split())


def _other_text(instruction: Instruction) -> str:
    match instruction:
        case Cut(block=block, blocks=blocks):
            what = f"{block} -> {' '.join(blocks)}"
        case Join(block=block, blocks=blocks):
            what = f"{' '.join(blocks)} -> {block}"
        case _ if isinstance(instruction, Collective):
            members = ",".join(map(str, instruction.group))
            what = f"{_scale(instruction)}{_moved(instruction)} over {members}".strip()
            what += ", posted" if instruction.request is not None else ""
        case _:
            what = str(getattr(instruction, "block", ""))
    what += ", in place" if getattr(instruction, "in_place", False) else ""
    return f"{_op(instruction):8} {what}"


def _moved(node: Collective) -> str:
    """The blocks of a collective, `A -> B C`; only its root lists those of a gather or scatter."""
    match node:
        case AllGather() | Gather():
            return f"{node.block} -> {' '.join(node.blocks) or getattr(node, 'root', '')}"
        case ReduceScatter() | Scatter():
            return f"{' '.join(node.blocks) or getattr(node, 'root', '')} -> {node.block}"
        case AllToAll(blocks=blocks, into=into):
            return f"{' '.join(blocks)} -> {' '.join(into)}"
        case AllReduce(reduced=blocks):
            return " ".join(blocks)
        case Barrier():
            return ""
        case _:
            return node.block


def _scale(node: Compute | Collective) -> str:
    """The text of a coefficient other than 1 before what it multiplies, `1/4 * `."""
    scale = getattr(node, "scale", "1")
    return "" if scale == "1" else f"{scale} * "


def _op(instruction: Instruction) -> str:
    return str(instruction.__struct_config__.tag)


def schema() -> dict[str, object]:
    """JSON Schema of the program format; shipped as `program.schema.json` in this folder."""
    return dict(msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Program))))
