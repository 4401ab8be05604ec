"""Ways to make a program wrong in what one rank does by itself; and the list of all ways."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from mutation import (
    Change,
    Json,
    Way,
    at,
    changed,
    doubled_reduction,
    doubled_wait,
    dropped_message,
    duplicated_message,
    early_overwrite,
    forgotten_sum,
    missing_reduction,
    missing_wait,
    moved_wait,
    places,
    retargeted_message,
    swapped_collectives,
    swapped_messages,
    with_rank,
    without,
    wrong_block,
    wrong_group,
    wrong_peer,
    wrong_reduction,
    wrong_root,
    wrong_tag,
)


def products(fields: Json, rank: int) -> list[int]:
    """Indices of one rank's sub-operators."""
    nodes = fields["programs"][rank]
    return [i for i, node in enumerate(nodes) if node["op"] == "compute" and "phase" in node]


def wrong_slice(fields: Json) -> Iterator[Change]:
    """A product counts as another sub-operator, of the same blocks or of its own."""
    for rank in range(fields["ranks"]):
        for index in products(fields, rank):
            node = fields["programs"][rank][index]
            grid = (fields.get("grid") or {}).get(node["phase"], {})
            for dim, slices in grid.items():
                if slices > 1:
                    slice_ = (node["sub_operator"][dim] + 1) % slices
                    other = {**node["sub_operator"], dim: slice_}
                    text = f"{at(rank, index)}: {dim}={slice_}"
                    yield text, changed(fields, rank, index, sub_operator=other)


def wrong_operand(fields: Json) -> Iterator[Change]:
    """A product reads another block, or is added to another one."""
    for rank in range(fields["ranks"]):
        places = products(fields, rank)
        nodes = fields["programs"][rank]
        for index in places:
            for other in places:
                for key in ("reads", "accumulates"):
                    if nodes[other][key] != nodes[index][key]:
                        entry = {key: nodes[other][key]}
                        text = f"{at(rank, index)}: {key} of {other}"
                        yield text, changed(fields, rank, index, **entry)


def missing_product(fields: Json) -> Iterator[Change]:
    """A product is left out."""
    for rank in range(fields["ranks"]):
        for index in products(fields, rank):
            rest = without(fields["programs"][rank], index)
            yield at(rank, index), with_rank(fields, rank, rest)


def doubled_product(fields: Json) -> Iterator[Change]:
    """A product is made twice, on its rank or on another one too."""
    for rank in range(fields["ranks"]):
        for index in products(fields, rank):
            nodes = fields["programs"][rank]
            twice = [*nodes[:index], nodes[index], *nodes[index:]]
            yield at(rank, index), with_rank(fields, rank, twice)
            other = (rank + 1) % fields["ranks"]
            theirs = [*fields["programs"][other], nodes[index]]
            yield f"{at(rank, index)} on {other}", with_rank(fields, other, theirs)


def swapped_products(fields: Json) -> Iterator[Change]:
    """Two products of one rank change places."""
    for rank in range(fields["ranks"]):
        places = products(fields, rank)
        for one, other in pairwise(places):
            nodes = list(fields["programs"][rank])
            nodes[one], nodes[other] = nodes[other], nodes[one]
            yield f"{at(rank, one)} and {other}", with_rank(fields, rank, nodes)


def late_rank(fields: Json) -> Iterator[Change]:
    """All products of one rank come one step later, the last one first."""
    for rank in range(fields["ranks"]):
        phases = {fields["programs"][rank][index]["phase"] for index in products(fields, rank)}
        for phase in sorted(phases):
            nodes = list(fields["programs"][rank])
            places = [i for i in products(fields, rank) if nodes[i]["phase"] == phase]
            late = [nodes[index] for index in (*places[-1:], *places[:-1])]
            for index, node in zip(places, late, strict=True):
                nodes[index] = node
            if len(places) > 1:
                yield f"rank {rank}, {phase}", with_rank(fields, rank, nodes)


def early_free(fields: Json) -> Iterator[Change]:
    """A block is freed earlier."""
    for rank, index, node in places(fields, "free", "evict"):
        for early in sorted({index // 2, max(index - 2, 0)} - {index}):
            rest = without(fields["programs"][rank], index)
            freed = [*rest[:early], node, *rest[early:]]
            yield f"{at(rank, index)} at {early}", with_rank(fields, rank, freed)


def missing_free(fields: Json) -> Iterator[Change]:
    """A block is not freed, made or fetched."""
    for rank, index, _ in places(fields, "free", "alloc", "fetch", "evict"):
        rest = without(fields["programs"][rank], index)
        yield at(rank, index), with_rank(fields, rank, rest)


def doubled_free(fields: Json) -> Iterator[Change]:
    """A block is freed, made or fetched twice."""
    for rank, index, node in places(fields, "free", "alloc", "fetch", "evict"):
        nodes = fields["programs"][rank]
        yield at(rank, index), with_rank(fields, rank, [*nodes[:index], node, *nodes[index:]])


def wrong_parts(fields: Json) -> Iterator[Change]:
    """A block is cut into other parts, or put together of others, or not at all."""
    for rank, index, node in places(fields, "cut", "join"):
        blocks = node["blocks"]
        rest = without(fields["programs"][rank], index)
        yield at(rank, index), with_rank(fields, rank, rest)
        if len(blocks) > 1:
            turned = [*blocks[1:], blocks[0]]
            for wrong in (turned, blocks[:-1], [*blocks[:-1], blocks[0]]):
                text = f"{at(rank, index)}: {' '.join(wrong)}"
                yield text, changed(fields, rank, index, blocks=wrong)


def wrong_place(fields: Json) -> Iterator[Change]:
    """A block is cut or joined in place, or not."""
    for rank, index, node in places(fields, "cut", "join"):
        other = not node.get("in_place", False)
        yield at(rank, index), changed(fields, rank, index, in_place=other)


WAYS: dict[str, Way] = {
    "swapped messages": swapped_messages,
    "dropped message": dropped_message,
    "duplicated message": duplicated_message,
    "retargeted message": retargeted_message,
    "wrong peer": wrong_peer,
    "wrong tag": wrong_tag,
    "wrong block": wrong_block,
    "missing wait": missing_wait,
    "doubled wait": doubled_wait,
    "moved wait": moved_wait,
    "early overwrite": early_overwrite,
    "swapped collectives": swapped_collectives,
    "missing reduction": missing_reduction,
    "doubled reduction": doubled_reduction,
    "forgotten sum": forgotten_sum,
    "wrong group": wrong_group,
    "wrong root": wrong_root,
    "wrong reduction": wrong_reduction,
    "wrong slice": wrong_slice,
    "wrong operand": wrong_operand,
    "missing product": missing_product,
    "doubled product": doubled_product,
    "swapped products": swapped_products,
    "rank a step late": late_rank,
    "early free": early_free,
    "missing free": missing_free,
    "doubled free": doubled_free,
    "wrong parts": wrong_parts,
    "wrong place": wrong_place,
}
"""What a mutant is called -> the changes of that way to a program."""
