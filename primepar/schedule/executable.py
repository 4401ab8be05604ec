"""Which programs run on a cluster here: those without what only programs of others have.

The prover, the explorer and the emulator know every instruction. The executor, the simulator and
certificates know those that methods, plans and passes make.
"""

from __future__ import annotations

from collections.abc import Iterator

from primepar.schedule.program import (
    Gather,
    Group,
    Instruction,
    Program,
    Scan,
    Scatter,
    SplitCommunicator,
    messages_of,
)


def not_executable(program: Program) -> str | None:
    """Return where a program has what is not executed, and what: `programs[0][3]: a scan`."""
    if program.rules is not None:
        return f"rules: those of {program.rules}"
    for rank, instructions in enumerate(program.programs):
        for place, node in enumerate(instructions):
            for what in _others(node):
                return f"programs[{rank}][{place}]: {what}"
    return None


def _others(node: Instruction) -> Iterator[str]:
    if isinstance(node, Gather | Scatter | Scan | SplitCommunicator):
        yield f"a {node.__struct_config__.tag}"
    elif isinstance(node, Group) and node.request is not None:
        yield "a group with a request"
    for message in messages_of(node):
        mode = getattr(message, "mode", "standard")
        if mode != "standard":
            yield f"a {mode} send"
