"""What is done in one: products whose blocks lie side by side, and collectives of such blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from primepar.distributed.collectives import (
    collective_reads,
    elements_sent,
    gather_whole,
    scatter_whole,
)
from primepar.distributed.frame import Frame, Step
from primepar.distributed.listing import Listing
from primepar.distributed.messages import Start
from primepar.distributed.products import multiply
from primepar.distributed.regions import Region
from primepar.distributed.series import (
    Series,
    gathers,
    merged,
    operands_of,
    outputs_of,
    products,
    scatters,
    series_of,
    touches,
)
from primepar.errors import ProgramError
from primepar.schedule.operators import parse_block
from primepar.schedule.program import AllGather, Collective, Compute, ReduceScatter


def products_at_once(listing: Listing) -> Iterator[Step]:
    """All products that follow one another from here on, in as few as there can be."""
    storage, start = listing.storage, listing.storage.place
    nodes = products(listing.instructions, start)
    places = {id(node): start + at for at, node in enumerate(nodes)}
    listing.done.update(places.values())
    outputs = outputs_of(nodes)
    region = _joined(listing, outputs, start + len(nodes))
    storage.planned.update(dict.fromkeys(outputs, region) if region else {})

    def joins(names: tuple[str, ...]) -> bool:
        written = names == outputs and any(storage.here.get(name) for name in names)
        return not written and storage.common(names) is not None

    for part in merged(nodes, joins):
        for node in part:
            _check(listing, node, places[id(node)])
        yield from _product(listing, part)
    for name in outputs:
        storage.planned.pop(name, None)


def _joined(listing: Listing, outputs: tuple[str, ...], after: int) -> Region | None:
    """The region that new outputs may lie in together.

    One with blocks that leave, or rest in a region of their own, must be scattered as a whole,
    which makes these anew.
    """
    region, rests = Region.of(outputs), {each for own in listing.memory.whole for each in own.names}
    leaving = {name for name in outputs if name in listing.memory.leaving or name in rests}
    if region is None or len(outputs) == 1 or not listing.storage.here.keys().isdisjoint(outputs):
        return None
    if not leaving:
        return region
    for place, node in enumerate(listing.instructions[after:], after):
        if isinstance(node, Compute) or not touches(node, outputs):
            continue
        if not isinstance(node, ReduceScatter):
            return None
        series = series_of(scatters(listing.instructions, place), listing.rank)
        whole = series is not None and series.region == region and leaving <= {*series.own}
        return region if whole else None
    return None


def _check(listing: Listing, node: Compute, place: int) -> None:
    if len(node.reads) != 2:
        raise ProgramError(
            f"{listing.at(place)}: expected two reads of a product, got {len(node.reads)}"
        )
    for name in node.reads:
        listing.need(name, place)
    for name in (*node.reads, node.accumulates):
        if parse_block(name) is None:
            raise ProgramError(
                f"{listing.at(place)}: expected a block of I, W or O or of their gradients in a "
                f"product, got {name!r}"
            )


def _product(listing: Listing, part: list[Compute]) -> Iterator[Step]:
    storage, outputs = listing.storage, outputs_of(part)
    names = (operands_of(part, 0), operands_of(part, 1), outputs)
    tensors = [block.tensor for some in names if (block := parse_block(some[0])) is not None]
    product = multiply((tensors[0], tensors[1]), tensors[2])
    begun = outputs[0] in storage.here
    for name in outputs:
        yield from storage.room(name, keep=True)
    first, second, into = map(storage.get, names)

    def run(frame: Frame) -> None:
        blocks = frame.blocks
        product(first(blocks), second(blocks), into(blocks), begun)

    yield Step(tuple(part), run)


def call(nodes: Sequence[Collective], start: Start) -> Step:
    """Calls that are one: waited for at once, or by the wait for any of them."""
    requests = [node.request for node in nodes if node.request is not None]
    if not requests:
        return Step(tuple(nodes), lambda frame: start(frame.blocks).wait())

    def begin(frame: Frame) -> None:
        frame.requests.update(dict.fromkeys(requests, start(frame.blocks)))

    return Step(tuple(nodes), begin)


def ring_at_once(listing: Listing, node: AllGather | ReduceScatter) -> Iterator[Step] | None:
    """Gather or scatter a whole region at once; None where the blocks do not allow it."""
    place, rank = listing.storage.place, listing.rank
    if rank not in node.group or len(node.group) == 1:
        return None
    alike = gathers if isinstance(node, AllGather) else scatters
    for nodes in (alike(listing.instructions, place), [node]):
        series = series_of(nodes, rank)
        if series is not None and _is_whole(listing, node, series):
            own = {id(each) for each in nodes}
            rest = enumerate(listing.instructions[place:], place)
            listing.done.update(at for at, each in rest if id(each) in own)
            return _ring(listing, nodes, series)
    return None


def _is_whole(listing: Listing, node: AllGather | ReduceScatter, series: Series) -> bool:
    """Whether the blocks of a series lie so that torch can take them as one."""
    storage, names = listing.storage, series.region.names
    if isinstance(node, AllGather):
        others = set(names) - set(series.own)
        return storage.contiguous(series.own) and storage.here.keys().isdisjoint(others)
    found = storage.common(names)
    return (
        found is not None
        and found[0] == series.region
        and not any(storage.here.get(name, True) for name in names)
        and storage.rests_in_one_piece(series.own)
    )


def _ring(
    listing: Listing, nodes: Sequence[AllGather | ReduceScatter], series: Series
) -> Iterator[Step]:
    storage, region, first = listing.storage, series.region, nodes[0]
    block = listing.memory.shape(region.names[0])
    pieces = [window.slices(block) for window in series.windows]
    for node in nodes:
        for name in collective_reads(node, listing.rank):
            listing.need(name)
        listing.sent += elements_sent(node, listing.rank, storage.size)
    if isinstance(first, AllGather):
        own = storage.get(series.own)
        yield from storage.gather(region, series.own)
        start = gather_whole(listing.mesh, first, region.key, pieces, own)
    else:
        yield from storage.renew(series.own)
        own = storage.get(series.own)
        start = scatter_whole(listing.mesh, first, region.key, pieces, own)
    yield call(nodes, start)
