"""Whether a program ends where every communicator runs its operations in one order, as on NCCL.

The strict semantics of a program lets every message end by itself, once both ends are posted. NCCL
is stricter still: on each rank a communicator is a stream. An operation starts when the one before
it in the stream has ended, and a batch of posts ends when all of its messages have. So a program
may end there and hang here. Example: rank 0 posts `isend a; compute; isend b`, rank 1 posts
`irecv b; compute; irecv a` on another communicator each way round: a waits behind b, b behind a.
`primepar.schedule.waits` has the graph, with adjacent posts of a communicator as one operation.
"""

from __future__ import annotations

from primepar.errors import ProgramError
from primepar.schedule.matching import Matches
from primepar.schedule.program import Program
from primepar.schedule.transport import Transport
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.schedule.words import NCCL_ADVICE, order_sentence

BY_COMMUNICATOR = Transport(order="communicator")


def out_of_order(program: Program, matches: Matches | None = None) -> str | None:
    """Return why a program hangs where communicators run in one order; None if it ends.

    It names the first two operations that wait for each other. Messages and calls without a
    partner are not its question: `primepar verify` refutes those before. `matches` are those of the
    program, if they are known.
    """
    graph = WaitGraph(matches or Matches(program), BY_COMMUNICATOR, joins_posts=True)
    cycle = cycle_of(graph)
    return None if cycle is None else order_sentence(cycle, program, NCCL_ADVICE)


def check_order(program: Program) -> None:
    """Raise `ProgramError` for a program that hangs where communicators run in one order."""
    hangs = out_of_order(program)
    if hangs is not None:
        raise ProgramError(
            "program: expected one that ends on NCCL, where posts of one communicator run in their "
            f"order, got one where {hangs}"
        )
