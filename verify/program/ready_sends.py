"""Ready sends: each must start only after its receive has been posted, in every run.

What a rank knows is what must have started before it came here: on its own rank all that comes
before, and for each wait that has returned what it waited for, and so on. A standard send does
not count, as the system may have buffered it. Example: rank 1 posts a receive and then joins a
barrier; a ready send of rank 0 after the barrier is safe, one before it is not.
"""

from __future__ import annotations

from primepar.verify.program.matching import Matching, MessageEnd, Operation, needs, place


def unready(flow: Matching) -> str | None:
    """The first ready send whose receive may not be posted yet, as a sentence; None if none is."""
    for operations in flow.operations:
        for operation in operations:
            for post in operation.starts:
                if getattr(post.message, "mode", "") == "ready" and not _is_safe(flow, post):
                    return (
                        f"{place(post)}: expected its receive to be posted before it in every run, "
                        f"got {place(post.partner) if post.partner else 'none'}, which may come "
                        "later: let this rank wait for it, or drop the mode"
                    )
    return None


def _is_safe(flow: Matching, send: MessageEnd) -> bool:
    receive = send.partner
    if receive is None:
        return False
    return _started(flow, send).get(receive.rank, -1) >= receive.index


def _started(flow: Matching, send: MessageEnd) -> dict[int, int]:
    """Rank -> the last instruction that must have started there before a send does."""
    started = {send.rank: send.index}
    seen = dict.fromkeys(range(len(flow.operations)), 0)
    changed = [send.rank]
    while changed:
        rank = changed.pop()
        returned = flow.operations[rank][seen[rank] : started[rank]]
        seen[rank] = started[rank]
        for item in (item for operation in returned for item in _awaited(flow, operation)):
            if item.index > started.get(item.rank, -1):
                started[item.rank] = item.index
                changed.append(item.rank)
    return started


def _awaited(flow: Matching, operation: Operation) -> list[MessageEnd | Operation]:
    items = needs(flow, operation, buffered=True) if operation.blocks else ()
    return [item for item in items if item is not None]
