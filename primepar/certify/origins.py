"""Where a wrong sum comes from: a second run, which keeps what was written to the wrong block.

Only something wrong needs it, and of all that is wrong only the first place of each property is
described. Example: both ranks compute N=0 of `O[0,0]` and an all-reduce adds them. The sum is read
with N=0 twice and without N=1. N=1 is nowhere computed, so `Origin()`; where another rank had
computed it, that place would be `sent_from`. Of N=0 the all-reduce is the place to fix: it is the
first that wrote it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from primepar.certify.contents import Content, Leaf, count_of
from primepar.certify.judge import Judge
from primepar.certify.run import Run
from primepar.schedule.evidence import Data, Origin, Place, Term, first_wrong


class _Written(NamedTuple):
    place: Place
    content: Content | None
    """What it wrote to the wrong block; None if it wrote to another one."""
    computes_term: bool


def origin(
    judge: Judge, level: Sequence[int], block: str, data: Data, text: Callable[[Term], str]
) -> Origin:
    """Find where the first wrong term of a sum that a block holds came to be wrong.

    `text` orders the terms, as in `first_wrong`.
    """
    term, is_common = first_wrong(data.terms(), text)
    if term is None:
        return Origin()
    (cell, token), written = term.key, list[_Written]()

    def note(place: Place, written_block: str, content: Content, leaf: Leaf | None) -> None:
        computes = leaf is not None and leaf[1] == token and cell in leaf[0]
        if written_block == block or computes:
            kept = content if written_block == block else None
            written.append(_Written(place, kept, computes))

    Run(judge.matches, judge.meaning, judge.racing, note).follow(judge.stretches(level))
    is_scaled = any(
        getattr(judge.matches.node(place), "scale", "1") != "1"
        for place, content, _ in written
        if content is not None
    )
    # It is nowhere in the sum. If somebody computes it, a message is missing from there; if nobody
    # does, `Origin()` without a place.
    if term.got == 0 and not is_common:
        return Origin(sent_from=next((place for place, _, computes in written if computes), None))
    wrong: dict[int, Place] = {}
    for place, content, _ in written:
        count = count_of(content, term.key) if content is not None else 0
        if not is_common:
            # The first place that wrote the term with a wrong coefficient; all later ones only
            # passed it on.
            if count not in (0, term.required):
                return Origin(fix=place, is_scaled=is_scaled)
            continue
        # A rank that wrote this coefficient and another one later is not the place.
        if count == term.got or (term.required == 1 and count > 1):
            wrong.setdefault(place[0], place)
        elif count:
            wrong.pop(place[0], None)
    return Origin(fix=next(iter(wrong.values()), None), is_scaled=is_scaled)
