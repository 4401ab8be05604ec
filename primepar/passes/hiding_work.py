"""What a device computes before a gather is needed, or after a reduction: it hides the transfer."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt, prod
from typing import NamedTuple

from primepar.passes.block_uses import LOCAL, RankList
from primepar.passes.chunk_sites import GatherSite, ReductionSite
from primepar.passes.program_tables import Tables
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Collective, Compute, Instruction, Wait
from primepar.schedule.signature import multiplies


class HidingWork(NamedTuple):
    """Computes of a device that run while a transfer next to them travels."""

    computes: int = 0
    elements: int = 0
    """Of all blocks that these computes name."""
    operations: int = 0
    """Of the products among them."""


def work_after(site: ReductionSite, line: RankList, tables: Tables, meaning: Meaning) -> HidingWork:
    """Return the work of a rank that can hide the end of its reduction.

    It ends where something waits for the reduction, or communicates.
    """
    computes = list[Compute]()
    for node in line.nodes[site.call + 1 : line.after(site.kept, site.call)]:
        if type(node) not in LOCAL:
            break
        computes += [node] if isinstance(node, Compute) else []
    return _work(computes, tables, meaning)


def work_before(site: GatherSite, line: RankList, tables: Tables, meaning: Meaning) -> HidingWork:
    """Return the work of a rank that can hide its gather, if that stays whole.

    It begins where the rank has its own part, or after another message. The pass `needed_first`
    posts the gather before collectives whose results are needed later: the gather of I for dW
    before the reduction of dI.
    """
    posts = [node for node in line.nodes[site.first : site.product - 1] if type(node) is not Wait]
    used = [line.rank.touched(node) for node in posts]
    names = {name for blocks in used for name in blocks.reads + blocks.made}
    uses = [line.before(name, site.first) for name in names]
    ready = max((use for use in uses if use is not None), default=-1)
    computes = list[Compute]()
    for place in range(site.first - 1, ready, -1):
        node = line.nodes[place]
        if type(node) not in LOCAL and not _may_wait(node, place, site, line):
            break
        computes += [node] if isinstance(node, Compute) else []
    return _work(computes, tables, meaning)


def _may_wait(node: Instruction, place: int, site: GatherSite, line: RankList) -> bool:
    """Return whether an instruction is a collective whose results are used after the product."""
    if not isinstance(node, Collective) or node.request is not None:
        return False
    uses = [line.after(name, place) for name in line.rank.touched(node).made]
    return all(use is None or use > site.product for use in uses)


def _work(nodes: Iterable[Compute], tables: Tables, meaning: Meaning) -> HidingWork:
    computes = elements = operations = 0
    for node in nodes:
        sizes = [meaning.elements(name) or 0 for name in (*node.reads, node.accumulates)]
        computes, elements = computes + 1, elements + sum(sizes)
        known = tables.phases.get(str(node.phase))
        if known is not None and multiplies(known.kernel):
            # Each dim is in two of the three blocks of a product.
            operations += 2 * isqrt(prod(sizes))
    return HidingWork(computes, elements, operations)
