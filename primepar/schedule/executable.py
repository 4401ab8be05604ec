"""Which programs run on a cluster here: those without what only programs of others have.

The prover, the explorer and the emulator know every instruction. The executor, the simulator and
certificates know those that methods, plans and passes make.
"""

from __future__ import annotations

from primepar.schedule.program import (
    Gather,
    Group,
    Program,
    Scatter,
)


def not_executable(program: Program) -> str | None:
    """Return where a program has what is not executed, and what: `programs[0][3]: a gather`."""
    for rank, instructions in enumerate(program.programs):
        for place, node in enumerate(instructions):
            if isinstance(node, Gather | Scatter):
                return f"programs[{rank}][{place}]: a {node.__struct_config__.tag}"
            if isinstance(node, Group) and node.request is not None:
                return f"programs[{rank}][{place}]: a group with a request"
    return None
