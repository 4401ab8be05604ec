"""Ways to make a program wrong, one change at a time; some changes do no harm.

A way takes a program as JSON and yields what it changed where, with the changed program. It changes
nothing in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
Nodes = list[Json]
Change = tuple[str, list[Nodes]]
"""Where it was changed, and the instructions of all ranks."""
Way = Callable[[Json], Iterator[Change]]

POSTS = ("send", "recv", "isend", "irecv")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
COLLECTIVES = (*REDUCING, "broadcast", "all_gather", "all_to_all", "barrier")


def with_rank(fields: Json, rank: int, nodes: Nodes) -> list[Nodes]:
    """The program with other instructions on one rank."""
    return [nodes if index == rank else old for index, old in enumerate(fields["programs"])]


def places(fields: Json, *ops: str) -> Iterator[tuple[int, int, Json]]:
    """(rank, index, instruction) of all instructions of some kinds."""
    for rank, nodes in enumerate(fields["programs"]):
        for index, node in enumerate(nodes):
            if node["op"] in ops:
                yield rank, index, node


def wait_of(nodes: Nodes, index: int) -> int | None:
    """Where what is posted at `index` is waited for."""
    request = nodes[index].get("request")
    later = range(index + 1, len(nodes))
    waits = (place for place in later if nodes[place] == {"op": "wait", "request": request})
    return next(waits, None) if request is not None else None


def without(nodes: Nodes, *indices: int | None) -> Nodes:
    """The instructions but these."""
    return [node for index, node in enumerate(nodes) if index not in indices]


def changed(fields: Json, rank: int, index: int, **entries: Any) -> list[Nodes]:
    """The program with other entries in one instruction."""
    nodes = list(fields["programs"][rank])
    nodes[index] = {**nodes[index], **entries}
    return with_rank(fields, rank, nodes)


def at(rank: int, index: int) -> str:
    """The text for a change, `rank 1, instruction 3`."""
    return f"rank {rank}, instruction {index}"


# Messages


def partner(fields: Json, rank: int, index: int) -> tuple[int, int] | None:
    """The other side of a message, matched in order."""
    node = fields["programs"][rank][index]
    sends = node["op"] in ("send", "isend")
    channel = _channel(fields, rank, node["peer"], node, sends)
    other = _channel(fields, node["peer"], rank, node, not sends)
    number = channel.index(index)
    return (node["peer"], other[number]) if number < len(other) else None


def _channel(fields: Json, rank: int, peer: int, like: Json, sends: bool) -> list[int]:
    """Indices of one rank's sends to a peer, or receives from it, on one communicator."""
    ops = ("send", "isend") if sends else ("recv", "irecv")
    name = like.get("communicator", "world")
    return [
        index
        for index, node in enumerate(fields["programs"][rank])
        if node["op"] in ops
        and node["peer"] == peer
        and node.get("communicator", "world") == name
    ]  # fmt: skip


def swapped_messages(fields: Json) -> Iterator[Change]:
    """Two posts of one rank change places."""
    last: dict[int, int] = {}
    for rank, index, _ in places(fields, *POSTS):
        if rank in last:
            nodes = list(fields["programs"][rank])
            nodes[last[rank]], nodes[index] = nodes[index], nodes[last[rank]]
            yield f"{at(rank, last[rank])} and {index}", with_rank(fields, rank, nodes)
        last[rank] = index


def dropped_message(fields: Json) -> Iterator[Change]:
    """One side of a message is left out, or both are."""
    for rank, index, node in places(fields, *POSTS):
        nodes = fields["programs"][rank]
        once = with_rank(fields, rank, without(nodes, index, wait_of(nodes, index)))
        yield at(rank, index), once
        other = partner(fields, rank, index)
        if node["op"] in ("send", "isend") and other is not None and other[0] != rank:
            theirs = fields["programs"][other[0]]
            both = without(theirs, other[1], wait_of(theirs, other[1]))
            yield (
                f"both sides of {at(rank, index)}",
                [both if r == other[0] else instructions for r, instructions in enumerate(once)],
            )


def _repeated(nodes: Nodes, index: int) -> Nodes:
    """An instruction once more, with a wait of its own, after the wait for the first."""
    wait = wait_of(nodes, index)
    again = [dict(nodes[index])]
    if "request" in again[0]:
        again[0]["request"] += " again"
        again.append({"op": "wait", "request": again[0]["request"]})
    end = (index if wait is None else wait) + 1
    return [*nodes[:end], *again, *nodes[end:]]


def duplicated_message(fields: Json) -> Iterator[Change]:
    """One side of a message is there twice, or both are."""
    for rank, index, node in places(fields, *POSTS):
        once = with_rank(fields, rank, _repeated(fields["programs"][rank], index))
        yield at(rank, index), once
        other = partner(fields, rank, index)
        if node["op"] in ("send", "isend") and other is not None and other[0] != rank:
            both = _repeated(fields["programs"][other[0]], other[1])
            yield (
                f"both sides of {at(rank, index)}",
                [both if r == other[0] else instructions for r, instructions in enumerate(once)],
            )


def retargeted_message(fields: Json) -> Iterator[Change]:
    """A message goes to a third rank, which receives it at its end or in the middle."""
    for rank, index, _ in places(fields, "send", "isend"):
        other = partner(fields, rank, index)
        for third in range(fields["ranks"]):
            if other is None or third in (rank, other[0]) or other[0] == rank:
                continue
            theirs = fields["programs"][other[0]]
            wait = wait_of(theirs, other[1])
            moved = [theirs[place] for place in (other[1], wait) if place is not None]
            programs = changed(fields, rank, index, peer=third)
            programs[other[0]] = without(theirs, other[1], wait)
            place = min(other[1], len(programs[third]))
            programs[third] = [*programs[third][:place], *moved, *programs[third][place:]]
            yield f"{at(rank, index)} to {third}", programs


def wrong_peer(fields: Json) -> Iterator[Change]:
    """One side of a message names another rank."""
    for rank, index, node in places(fields, *POSTS):
        for peer in range(fields["ranks"]):
            if peer != node["peer"]:
                yield f"{at(rank, index)}: {peer}", changed(fields, rank, index, peer=peer)


def wrong_tag(fields: Json) -> Iterator[Change]:
    """One side of a message has another tag, or both have."""
    for rank, index, node in places(fields, *POSTS):
        tag = node.get("tag", 0) + 7
        once = changed(fields, rank, index, tag=tag)
        yield at(rank, index), once
        other = partner(fields, rank, index)
        if node["op"] in ("send", "isend") and other is not None and other[0] != rank:
            both = changed({**fields, "programs": once}, *other, tag=tag)
            yield f"both sides of {at(rank, index)}", both


def wrong_block(fields: Json) -> Iterator[Change]:
    """A message or a collective carries another block that its rank uses."""
    for rank, index, node in places(fields, *POSTS, *COLLECTIVES):
        names = sorted({n["block"] for n in fields["programs"][rank] if "block" in n})
        for name in names:
            if node.get("block", name) != name:
                yield f"{at(rank, index)}: {name}", changed(fields, rank, index, block=name)


# Waits


def missing_wait(fields: Json) -> Iterator[Change]:
    """A wait is left out."""
    for rank, index, _ in places(fields, "wait"):
        nodes = fields["programs"][rank]
        yield at(rank, index), with_rank(fields, rank, without(nodes, index))


def doubled_wait(fields: Json) -> Iterator[Change]:
    """A wait is there twice."""
    for rank, index, node in places(fields, "wait"):
        nodes = fields["programs"][rank]
        yield at(rank, index), with_rank(fields, rank, [*nodes[:index], node, *nodes[index:]])


def moved_wait(fields: Json) -> Iterator[Change]:
    """A wait is right after its post, or at the end of the program."""
    for rank, index, node in places(fields, "wait"):
        nodes = without(fields["programs"][rank], index)
        post = next(i for i, n in enumerate(nodes) if n.get("request") == node["request"])
        early = [*nodes[: post + 1], node, *nodes[post + 1 :]]
        yield f"{at(rank, index)} to {post + 1}", with_rank(fields, rank, early)
        for late in (min(index + 2, len(nodes)), len(nodes)):
            later = [*nodes[:late], node, *nodes[late:]]
            yield f"{at(rank, index)} to {late}", with_rank(fields, rank, later)


def early_overwrite(fields: Json) -> Iterator[Change]:
    """A block in flight is made anew, or a receive is posted while its block is in use."""
    for rank, index, node in places(fields, "isend", "irecv", *COLLECTIVES):
        nodes = fields["programs"][rank]
        if "request" in node and "block" in node:
            cleared = [*nodes[: index + 1], {"op": "alloc", "block": node["block"]},
                       *nodes[index + 1 :]]  # fmt: skip
            yield f"after {at(rank, index)}", with_rank(fields, rank, cleared)
        if node["op"] == "irecv":
            for early in {max(index - 3, 0), 0} - {index}:
                rest = without(nodes, index)
                posted = [*rest[:early], node, *rest[early:]]
                yield f"{at(rank, index)} at {early}", with_rank(fields, rank, posted)


# Collectives


def call(fields: Json, rank: int, index: int) -> list[tuple[int, int]]:
    """(rank, index) of all members of a collective, matched in order."""
    node = fields["programs"][rank][index]
    key = (sorted(node["group"]), node.get("communicator", "world"))
    lines = [
        [i for r, i, n in places(fields, *COLLECTIVES) if r == member
         and (sorted(n["group"]), n.get("communicator", "world")) == key]
        for member in node["group"]
    ]  # fmt: skip
    number = lines[node["group"].index(rank)].index(index)
    return [(member, line[number]) for member, line in zip(node["group"], lines, strict=True)]


def calls(fields: Json, *ops: str) -> Iterator[list[tuple[int, int]]]:
    """Every collective of some kinds, once."""
    for rank, index, node in places(fields, *ops):
        if rank == min(node["group"]):
            yield call(fields, rank, index)


def on_members(
    fields: Json, members: list[tuple[int, int]], change: Callable[[Nodes, int], Nodes]
) -> list[Nodes]:
    """The program with a collective changed on all of its members."""
    programs = list(fields["programs"])
    for rank, index in members:
        programs[rank] = change(programs[rank], index)
    return programs


def swapped_collectives(fields: Json) -> Iterator[Change]:
    """One rank makes two calls in the other order."""
    last: dict[int, int] = {}
    for rank, index, _ in places(fields, *COLLECTIVES):
        if rank in last:
            nodes = list(fields["programs"][rank])
            nodes[last[rank]], nodes[index] = nodes[index], nodes[last[rank]]
            yield f"{at(rank, last[rank])} and {index}", with_rank(fields, rank, nodes)
        last[rank] = index


def _left_out(nodes: Nodes, index: int) -> Nodes:
    return without(nodes, index, wait_of(nodes, index))


def missing_reduction(fields: Json) -> Iterator[Change]:
    """No member makes a reduction, or a sum that came by message is not added."""
    for members in calls(fields, *REDUCING):
        yield at(*members[0]), on_members(fields, members, _left_out)
    for rank, index, node in places(fields, "compute"):
        if "phase" not in node:
            nodes = fields["programs"][rank]
            yield at(rank, index), with_rank(fields, rank, without(nodes, index))


def doubled_reduction(fields: Json) -> Iterator[Change]:
    """All members make a reduction twice, or a sum that came by message is added twice."""
    for members in calls(fields, *REDUCING):
        yield at(*members[0]), on_members(fields, members, _repeated)
    for rank, index, node in places(fields, "compute"):
        if "phase" not in node:
            nodes = fields["programs"][rank]
            yield at(rank, index), with_rank(fields, rank, [*nodes[:index], node, *nodes[index:]])


def wrong_group(fields: Json) -> Iterator[Change]:
    """A collective goes without one member, or with one more, or with one in place of another."""
    for members in calls(fields, *COLLECTIVES):
        group = fields["programs"][members[0][0]][members[0][1]]["group"]
        others = [rank for rank in range(fields["ranks"]) if rank not in group]
        choices = [group[:-1]] if len(group) > 1 else []
        if others:
            choices += [[*group, others[0]], [*group[:-1], others[0]]]
        for wanted in choices:
            yield f"{at(*members[0])}: {wanted}", _regrouped(fields, members, wanted)
        yield f"{at(*members[0])}: alone", changed(fields, *members[0], group=[members[0][0]])


def _regrouped(fields: Json, members: list[tuple[int, int]], group: list[int]) -> list[Nodes]:
    """Members that are left call with another group; who is out does not call."""

    def change(nodes: Nodes, index: int) -> Nodes:
        return [{**n, "group": group} if i == index else n for i, n in enumerate(nodes)]

    programs = list(fields["programs"])
    for rank, index in members:
        edit = change if rank in group else _left_out
        programs[rank] = edit(programs[rank], index)
    return programs


def wrong_root(fields: Json) -> Iterator[Change]:
    """A broadcast or reduction has another root, on one member or on all."""
    for members in calls(fields, "broadcast", "reduce"):
        node = fields["programs"][members[0][0]][members[0][1]]
        for root in [rank for rank in node["group"] if rank != node["root"]][:2]:
            yield f"{at(*members[0])}: {root}", changed(fields, *members[0], root=root)

            def change(nodes: Nodes, index: int, root: int = root) -> Nodes:
                return [{**n, "root": root} if i == index else n for i, n in enumerate(nodes)]

            yield f"{at(*members[0])}: {root} for all", on_members(fields, members, change)


def wrong_reduction(fields: Json) -> Iterator[Change]:
    """A sum becomes a maximum, on one member or on all."""
    for members in calls(fields, *REDUCING):
        yield at(*members[0]), changed(fields, *members[0], reduction="max")

        def change(nodes: Nodes, index: int) -> Nodes:
            return [{**n, "reduction": "max"} if i == index else n for i, n in enumerate(nodes)]

        yield f"{at(*members[0])} for all", on_members(fields, members, change)


def forgotten_sum(fields: Json) -> Iterator[Change]:
    """One tensor is never reduced: the sum over the depth, over a norm's rows, over the data."""
    reduced: dict[str, list[list[tuple[int, int]]]] = {}
    for members in calls(fields, *REDUCING):
        block = fields["programs"][members[0][0]][members[0][1]]["block"]
        reduced.setdefault(block.partition("[")[0], []).append(members)
    for tensor, reduced_ in reduced.items():
        gone = {(rank, index) for members in reduced_ for rank, index in members}
        programs = []
        for rank, nodes in enumerate(fields["programs"]):
            out = [index for place, index in gone if place == rank]
            waits = [wait_of(nodes, index) for index in out]
            programs.append(without(nodes, *out, *waits))
        yield tensor, programs
