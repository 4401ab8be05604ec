"""Ways to make a call that reduces several blocks wrong: its blocks, their order and their sizes.

`all_reduce u also v w` reduces three. A change is on one member of the group, or on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mutation import Change, Json, Nodes, at, call, calls, on_members, places

Blocks = list[str]


def reduced(node: Json) -> Blocks:
    """All blocks of an all-reduce."""
    return [node["block"], *node.get("also", [])]


def several(fields: Json) -> Iterator[tuple[int, int, Json]]:
    """(rank, index, call) of each all-reduce of two blocks or more."""
    for rank, index, node in places(fields, "all_reduce"):
        if node.get("also"):
            yield rank, index, node


def listing(nodes: Nodes, index: int, blocks: Blocks) -> Nodes:
    """The instructions with other blocks in an all-reduce."""
    node = {**nodes[index], "block": blocks[0], "also": blocks[1:]}
    return [*nodes[:index], node, *nodes[index + 1 :]]


def missing_block(fields: Json) -> Iterator[Change]:
    """A block is left out of a call, on one rank or on all."""
    for rank, index, node in several(fields):
        members = call(fields, rank, index)
        for number in range(len(reduced(node))):

            def change(nodes: Nodes, place: int, number: int = number) -> Nodes:
                blocks = reduced(nodes[place])
                return listing(nodes, place, blocks[:number] + blocks[number + 1 :])

            text = f"{at(rank, index)}: block {number}"
            yield text, on_members(fields, [(rank, index)], change)
            if rank == min(node["group"]):
                yield f"{text} for all", on_members(fields, members, change)


def turned_blocks(fields: Json) -> Iterator[Change]:
    """The blocks of a call are in another order, on one rank or on all: that does no harm."""

    def change(nodes: Nodes, place: int) -> Nodes:
        first, *others = reduced(nodes[place])
        return listing(nodes, place, [*others, first])

    for rank, index, node in several(fields):
        yield at(rank, index), on_members(fields, [(rank, index)], change)
        if rank == min(node["group"]):
            members = call(fields, rank, index)
            yield f"{at(rank, index)} for all", on_members(fields, members, change)


def moved_block(fields: Json) -> Iterator[Change]:
    """The last block of a call goes to another call of the group, or is there too."""
    for members in calls(fields, "all_reduce"):
        rank, index = members[0]
        node = fields["programs"][rank][index]
        for others in calls(fields, "all_reduce") if node.get("also") else ():
            if others != members and [member for member, _ in others] == list(node["group"]):
                for keeps in (True, False):
                    for count in (1, len(members)):
                        pairs = list(zip(members, others, strict=True))[:count]
                        on = "all" if count > 1 else f"rank {rank}"
                        what = "also in" if keeps else "to"
                        text = f"{at(rank, index)} {what} {others[0][1]} on {on}"
                        yield text, _moved(fields, pairs, keeps)


def _moved(
    fields: Json, pairs: list[tuple[tuple[int, int], tuple[int, int]]], keeps: bool
) -> list[Nodes]:
    programs = list(fields["programs"])
    for (rank, index), (_, other) in pairs:
        *blocks, last = reduced(programs[rank][index])
        gained = listing(programs[rank], other, [*reduced(programs[rank][other]), last])
        programs[rank] = gained if keeps else listing(gained, index, blocks)
    return programs


def other_block(fields: Json) -> Iterator[Change]:
    """The last block of a call is another one of its rank, of the same size or not."""
    for rank, index, node in several(fields):
        names = {n["accumulates"] for n in fields["programs"][rank] if n["op"] == "compute"}
        for name in sorted(names - set(reduced(node))):
            members = call(fields, rank, index)

            def change(nodes: Nodes, place: int, name: str = name) -> Nodes:
                return listing(nodes, place, [*reduced(nodes[place])[:-1], name])

            yield f"{at(rank, index)}: {name}", on_members(fields, [(rank, index)], change)
            if rank == min(node["group"]):
                text = f"{at(rank, index)} for all: {name}"
                yield text, on_members(fields, members, change)


SEVERAL_WAYS = {
    "missing block": missing_block,
    "turned blocks": turned_blocks,
    "moved block": moved_block,
    "other block": other_block,
}
"""What a mutant is called -> the changes of that way to a program."""
