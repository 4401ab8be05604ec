"""Ways to make a program wrong, one change at a time; some changes do no harm.

A way takes a program as JSON and yields what it changed where, with the changed program. It changes
nothing in place. Most ways apply an edit of one list, `edit(instructions, index)`, to one rank, to
both sides of a message, or to one and to all members of a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import pairwise, product
from typing import Any

Json = dict[str, Any]
Nodes = list[Json]
Place = tuple[int, int]
"""Rank, and index of an instruction there."""
Edit = Callable[[Nodes, int], Nodes]
Change = tuple[str, list[Nodes]]
"""Where it was changed, and the instructions of all ranks."""
Way = Callable[[Json], Iterator[Change]]
Whole = tuple[str, Json]
"""Where it was changed, and the changed program."""
Pick = Callable[[Json], Iterator[tuple[int, int, Json]]]
"""(rank, index, instruction) of some instructions of a program."""

POSTS = ("send", "recv", "isend", "irecv")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
COLLECTIVES = (*REDUCING, "broadcast", "all_gather", "all_to_all", "barrier")
MEMORY = ("free", "alloc", "fetch", "evict")


def at(rank: int, index: int) -> str:
    """The text for a change, `rank 1, instruction 3`."""
    return f"rank {rank}, instruction {index}"


def places(fields: Json, *ops: str) -> Iterator[tuple[int, int, Json]]:
    """(rank, index, instruction) of all instructions of some kinds."""
    for rank, nodes in enumerate(fields["programs"]):
        for index, node in enumerate(nodes):
            if node["op"] in ops:
                yield rank, index, node


def products(fields: Json, only: int | None = None) -> Iterator[tuple[int, int, Json]]:
    """All sub-operators, or those of one rank."""
    for rank, nodes in enumerate(fields["programs"]):
        for index, node in enumerate(nodes) if only in (None, rank) else ():
            if node["op"] == "compute" and "phase" in node:
                yield rank, index, node


def additions(fields: Json) -> Iterator[tuple[int, int, Json]]:
    """All sums of what came by message."""
    return (place for place in places(fields, "compute") if "phase" not in place[2])


# Edits of one list


def wait_of(nodes: Nodes, index: int) -> int | None:
    """Where what is posted at `index` is waited for."""
    request = nodes[index].get("request")
    later = range(index + 1, len(nodes))
    waits = (place for place in later if nodes[place] == {"op": "wait", "request": request})
    return next(waits, None) if request is not None else None


def without(nodes: Nodes, *indices: int | None) -> Nodes:
    """The instructions but these."""
    return [node for index, node in enumerate(nodes) if index not in indices]


def inserted(nodes: Nodes, index: int, *new: Json) -> Nodes:
    """The instructions with others before `index`."""
    return [*nodes[:index], *new, *nodes[index:]]


def left_out(nodes: Nodes, index: int) -> Nodes:
    """Without an instruction and its wait."""
    return without(nodes, index, wait_of(nodes, index))


def twice(nodes: Nodes, index: int) -> Nodes:
    """An instruction is there twice, one after the other."""
    return inserted(nodes, index, nodes[index])


def repeated(nodes: Nodes, index: int) -> Nodes:
    """An instruction once more, with a wait of its own, after the wait for the first."""
    wait = wait_of(nodes, index)
    again = [dict(nodes[index])]
    if "request" in again[0]:
        again[0]["request"] += " again"
        again.append({"op": "wait", "request": again[0]["request"]})
    return inserted(nodes, (index if wait is None else wait) + 1, *again)


def moved(nodes: Nodes, index: int, place: int) -> Nodes:
    """An instruction at another place."""
    return inserted(without(nodes, index), place, nodes[index])


def entered(**entries: Any) -> Edit:
    """An edit that gives an instruction other entries."""
    return lambda nodes, index: [
        {**node, **entries} if place == index else node for place, node in enumerate(nodes)
    ]


# Edits of a program


def edited(fields: Json, edit: Edit, *where: Place) -> list[Nodes]:
    """The program with an edit at each of these places."""
    programs = list(fields["programs"])
    for rank, index in where:
        programs[rank] = edit(programs[rank], index)
    return programs


def with_rank(fields: Json, rank: int, nodes: Nodes) -> list[Nodes]:
    """The program with other instructions on one rank."""
    return [nodes if index == rank else old for index, old in enumerate(fields["programs"])]


def changed(fields: Json, rank: int, index: int, **entries: Any) -> list[Nodes]:
    """The program with other entries in one instruction."""
    return edited(fields, entered(**entries), (rank, index))


def each_place(edit: Edit, pick: Pick) -> Way:
    """A way that edits one place, each in turn."""
    return lambda fields: (
        (at(rank, index), edited(fields, edit, (rank, index))) for rank, index, _ in pick(fields)
    )


def of(*ops: str) -> Pick:
    """The instructions of some kinds."""
    return lambda fields: places(fields, *ops)


def exchanged(pick: Pick) -> Way:
    """A way in which two picked instructions of one rank, one after the other, change places."""

    def way(fields: Json) -> Iterator[Change]:
        for (rank, one, first), (same, other, second) in pairwise(pick(fields)):
            if rank == same:
                nodes = list(fields["programs"][rank])
                nodes[one], nodes[other] = second, first
                yield f"{at(rank, one)} and {other}", with_rank(fields, rank, nodes)

    return way


def one_or_all(fields: Json, members: list[Place], text: str, edit: Edit) -> Iterator[Change]:
    """An edit on the first member of a collective, and on all of them."""
    yield text, edited(fields, edit, members[0])
    yield f"{text} for all", edited(fields, edit, *members)


# Messages


def partner(fields: Json, rank: int, index: int) -> Place | None:
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


def one_or_both_sides(edit: Edit) -> Way:
    """A way that edits one side of a message, and both."""

    def way(fields: Json) -> Iterator[Change]:
        for rank, index, node in places(fields, *POSTS):
            yield at(rank, index), edited(fields, edit, (rank, index))
            other = partner(fields, rank, index)
            if node["op"] in ("send", "isend") and other is not None and other[0] != rank:
                both = edited(fields, edit, (rank, index), other)
                yield f"both sides of {at(rank, index)}", both

    return way


def other_tag(nodes: Nodes, index: int) -> Nodes:
    """A message has another tag."""
    return entered(tag=nodes[index].get("tag", 0) + 7)(nodes, index)


def retargeted_message(fields: Json) -> Iterator[Change]:
    """A message goes to a third rank, which receives it at its end or in the middle."""
    for rank, index, _ in places(fields, "send", "isend"):
        other = partner(fields, rank, index)
        for third in range(fields["ranks"]):
            if other is None or third in (rank, other[0]) or other[0] == rank:
                continue
            theirs = fields["programs"][other[0]]
            wait = wait_of(theirs, other[1])
            taken = [theirs[place] for place in (other[1], wait) if place is not None]
            programs = changed(fields, rank, index, peer=third)
            programs[other[0]] = without(theirs, other[1], wait)
            place = min(other[1], len(programs[third]))
            programs[third] = inserted(programs[third], place, *taken)
            yield f"{at(rank, index)} to {third}", programs


def wrong_peer(fields: Json) -> Iterator[Change]:
    """One side of a message names another rank."""
    for rank, index, node in places(fields, *POSTS):
        for peer in range(fields["ranks"]):
            if peer != node["peer"]:
                yield f"{at(rank, index)}: {peer}", changed(fields, rank, index, peer=peer)


def wrong_block(fields: Json) -> Iterator[Change]:
    """A message or a collective carries another block that its rank uses."""
    for rank, index, node in places(fields, *POSTS, *COLLECTIVES):
        names = sorted({n["block"] for n in fields["programs"][rank] if "block" in n})
        for name in names:
            if node.get("block", name) != name:
                yield f"{at(rank, index)}: {name}", changed(fields, rank, index, block=name)


# Waits


def moved_wait(fields: Json) -> Iterator[Change]:
    """A wait is right after its post, or at the end of the program."""
    for rank, index, node in places(fields, "wait"):
        nodes = fields["programs"][rank]
        post = next(i for i, n in enumerate(nodes) if n.get("request") == node["request"])
        for place in (post + 1, min(index + 2, len(nodes) - 1), len(nodes) - 1):
            later = with_rank(fields, rank, moved(nodes, index, place))
            yield f"{at(rank, index)} to {place}", later


def early_overwrite(fields: Json) -> Iterator[Change]:
    """A block in flight is made anew, or a receive is posted while its block is in use."""
    for rank, index, node in places(fields, "isend", "irecv", *COLLECTIVES):
        nodes = fields["programs"][rank]
        if "request" in node and "block" in node:
            cleared = inserted(nodes, index + 1, {"op": "alloc", "block": node["block"]})
            yield f"after {at(rank, index)}", with_rank(fields, rank, cleared)
        if node["op"] == "irecv":
            for early in {max(index - 3, 0), 0} - {index}:
                posted = with_rank(fields, rank, moved(nodes, index, early))
                yield f"{at(rank, index)} at {early}", posted


# Collectives


def call(fields: Json, rank: int, index: int) -> list[Place]:
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


def calls(fields: Json, *ops: str) -> Iterator[list[Place]]:
    """Every collective of some kinds, once."""
    for rank, index, node in places(fields, *ops):
        if rank == min(node["group"]):
            yield call(fields, rank, index)


def node_at(fields: Json, place: Place) -> Json:
    """The instruction at a place."""
    node: Json = fields["programs"][place[0]][place[1]]
    return node


def each_reduction(edit: Edit, edit_of_addition: Edit) -> Way:
    """A way that edits a reduction on all members, and then what adds a sum that was received."""

    def way(fields: Json) -> Iterator[Change]:
        for members in calls(fields, *REDUCING):
            yield at(*members[0]), edited(fields, edit, *members)
        yield from each_place(edit_of_addition, additions)(fields)

    return way


def wrong_group(fields: Json) -> Iterator[Change]:
    """A collective goes without one member, or with one more, or with one in place of another."""
    for members in calls(fields, *COLLECTIVES):
        group = node_at(fields, members[0])["group"]
        others = [rank for rank in range(fields["ranks"]) if rank not in group]
        choices = [group[:-1]] if len(group) > 1 else []
        if others:
            choices += [[*group, others[0]], [*group[:-1], others[0]]]
        for wanted in choices:  # who is out does not call
            programs = list(fields["programs"])
            for rank, index in members:
                edit = entered(group=wanted) if rank in wanted else left_out
                programs[rank] = edit(programs[rank], index)
            yield f"{at(*members[0])}: {wanted}", programs
        yield f"{at(*members[0])}: alone", changed(fields, *members[0], group=[members[0][0]])


def wrong_root(fields: Json) -> Iterator[Change]:
    """A broadcast or reduction has another root, on one member or on all."""
    for members in calls(fields, "broadcast", "reduce"):
        node = node_at(fields, members[0])
        for root in [rank for rank in node["group"] if rank != node["root"]][:2]:
            yield from one_or_all(fields, members, f"{at(*members[0])}: {root}", entered(root=root))


def wrong_reduction(fields: Json) -> Iterator[Change]:
    """A sum becomes a maximum, on one member or on all."""
    for members in calls(fields, *REDUCING):
        yield from one_or_all(fields, members, at(*members[0]), entered(reduction="max"))


def forgotten_sum(fields: Json) -> Iterator[Change]:
    """One tensor is never reduced: the sum over the depth, over a norm's rows, over the data."""
    reduced: dict[str, list[Place]] = {}
    for members in calls(fields, *REDUCING):
        tensor = node_at(fields, members[0])["block"].partition("[")[0]
        reduced.setdefault(tensor, []).extend(members)
    for tensor, gone in reduced.items():
        programs = []
        for rank, nodes in enumerate(fields["programs"]):
            out = [index for place, index in gone if place == rank]
            programs.append(without(nodes, *out, *(wait_of(nodes, index) for index in out)))
        yield tensor, programs


# Calls that reduce several blocks: `all_reduce u also v w` reduces three

Blocks = list[str]


def reduced_by(node: Json) -> Blocks:
    """All blocks of an all-reduce."""
    return [node["block"], *node.get("also", [])]


def listing(blocks: Blocks) -> Edit:
    """An edit that gives an all-reduce other blocks."""
    return entered(block=blocks[0], also=blocks[1:])


def relisted(fields: Json, rank: int, index: int, text: str, other: Callable[[Blocks], Blocks]) -> (
    Iterator[Change]
):  # fmt: skip
    """A call has other blocks on one rank; once for each call, on all members."""

    def edit(nodes: Nodes, place: int) -> Nodes:
        return listing(other(reduced_by(nodes[place])))(nodes, place)

    members = call(fields, rank, index)
    on_one, on_all = one_or_all(
        fields, sorted(members, key=lambda place: place != (rank, index)), text, edit
    )
    yield on_one
    if rank == min(member for member, _ in members):
        yield on_all


def several(fields: Json) -> Iterator[tuple[int, int, Json]]:
    """(rank, index, call) of each all-reduce of two blocks or more."""
    return (place for place in places(fields, "all_reduce") if place[2].get("also"))


def missing_block(fields: Json) -> Iterator[Change]:
    """A block is left out of a call, on one rank or on all."""
    for rank, index, node in several(fields):
        for number in range(len(reduced_by(node))):
            yield from relisted(fields, rank, index, f"{at(rank, index)}: block {number}",
                                partial(_but, number))  # fmt: skip


def _but(number: int, blocks: Blocks) -> Blocks:
    return blocks[:number] + blocks[number + 1 :]


def turned_blocks(fields: Json) -> Iterator[Change]:
    """The blocks of a call are in another order, on one rank or on all: that does no harm."""
    for rank, index, _ in several(fields):
        yield from relisted(fields, rank, index, at(rank, index),
                            lambda blocks: [*blocks[1:], blocks[0]])  # fmt: skip


def moved_block(fields: Json) -> Iterator[Change]:
    """The last block of a call goes to another call of the group, or is there too."""
    for members in calls(fields, "all_reduce"):
        rank, index = members[0]
        node = fields["programs"][rank][index]
        for others in calls(fields, "all_reduce") if node.get("also") else ():
            if others != members and [member for member, _ in others] == list(node["group"]):
                for keeps, count in product((True, False), (1, len(members))):
                    pairs = list(zip(members, others, strict=True))[:count]
                    on = "all" if count > 1 else f"rank {rank}"
                    what = "also in" if keeps else "to"
                    text = f"{at(rank, index)} {what} {others[0][1]} on {on}"
                    yield text, _moved_block(fields, pairs, keeps)


def _moved_block(fields: Json, pairs: list[tuple[Place, Place]], keeps: bool) -> list[Nodes]:
    programs = list(fields["programs"])
    for (rank, index), (_, other) in pairs:
        nodes = programs[rank]
        *blocks, last = reduced_by(nodes[index])
        gained = listing([*reduced_by(nodes[other]), last])(nodes, other)
        programs[rank] = gained if keeps else listing(blocks)(gained, index)
    return programs


def other_block(fields: Json) -> Iterator[Change]:
    """The last block of a call is another one of its rank, of the same size or not."""
    for rank, index, node in several(fields):
        names = {n["accumulates"] for n in fields["programs"][rank] if n["op"] == "compute"}
        for name in sorted(names - set(reduced_by(node))):
            yield from relisted(fields, rank, index, f"{at(rank, index)}: {name}",
                                partial(_ending_with, name))  # fmt: skip


def _ending_with(name: str, blocks: Blocks) -> Blocks:
    return [*blocks[:-1], name]


# What one rank does by itself


def wrong_slice(fields: Json) -> Iterator[Change]:
    """A product counts as another sub-operator, of the same blocks or of its own."""
    for rank, index, node in products(fields):
        for dim, slices in (fields.get("grid") or {}).get(node["phase"], {}).items():
            if slices > 1:
                slice_ = (node["sub_operator"][dim] + 1) % slices
                other = {**node["sub_operator"], dim: slice_}
                text = f"{at(rank, index)}: {dim}={slice_}"
                yield text, changed(fields, rank, index, sub_operator=other)


def wrong_operand(fields: Json) -> Iterator[Change]:
    """A product reads another block, or is added to another one."""
    for rank in range(fields["ranks"]):
        for (_, index, node), (_, place, other) in product(products(fields, rank), repeat=2):
            for key in ("reads", "accumulates"):
                if other[key] != node[key]:
                    text = f"{at(rank, index)}: {key} of {place}"
                    yield text, changed(fields, rank, index, **{key: other[key]})


def doubled_product(fields: Json) -> Iterator[Change]:
    """A product is made twice, on its rank or on another one too."""
    for rank, index, node in products(fields):
        yield at(rank, index), edited(fields, twice, (rank, index))
        other = (rank + 1) % fields["ranks"]
        theirs = [*fields["programs"][other], node]
        yield f"{at(rank, index)} on {other}", with_rank(fields, other, theirs)


def late_rank(fields: Json) -> Iterator[Change]:
    """All products of one rank come one step later, the last one first."""
    for rank in range(fields["ranks"]):
        for phase in sorted({node["phase"] for _, _, node in products(fields, rank)}):
            nodes = list(fields["programs"][rank])
            of_phase = [i for _, i, node in products(fields, rank) if node["phase"] == phase]
            late = [nodes[index] for index in (*of_phase[-1:], *of_phase[:-1])]
            for index, node in zip(of_phase, late, strict=True):
                nodes[index] = node
            if len(of_phase) > 1:
                yield f"rank {rank}, {phase}", with_rank(fields, rank, nodes)


def early_free(fields: Json) -> Iterator[Change]:
    """A block is freed earlier."""
    for rank, index, _ in places(fields, "free", "evict"):
        for early in sorted({index // 2, max(index - 2, 0)} - {index}):
            freed = moved(fields["programs"][rank], index, early)
            yield f"{at(rank, index)} at {early}", with_rank(fields, rank, freed)


def wrong_parts(fields: Json) -> Iterator[Change]:
    """A block is cut into other parts, or put together or exchanged of others, or not at all."""
    for rank, index, node in places(fields, "cut", "join", "all_to_all"):
        blocks = node["blocks"]
        yield at(rank, index), edited(fields, without, (rank, index))
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


# Fields of a program other than instructions


def wrong_amount(fields: Json) -> Iterator[Whole]:
    """The bound of memory, or what one rank should send, is a little more or less."""
    bound = fields.get("memory") or {}
    for key, by in product([key for key in bound if bound[key] is not None], (-2, -1, 1, 4)):
        if bound[key] + by >= 0:
            memory = {**bound, key: bound[key] + by}
            yield f"memory of the {key}: {by:+d}", {**fields, "memory": memory}
    stated = fields.get("traffic") or ()
    for rank, halves in product(range(len(stated)), (-2, 1, 2)):
        amount = Fraction(stated[rank]) + Fraction(halves, 2)
        if amount >= 0:
            text = amount.numerator if amount.denominator == 1 else str(amount)
            yield (
                f"traffic of rank {rank}: {amount}",
                {**fields, "traffic": [*stated[:rank], text, *stated[rank + 1 :]]},
            )


def wrong_home(fields: Json) -> Iterator[Whole]:
    """A block is at first, or should be at the end, on no rank, on the next one, or there too."""
    for key, rank in product(("initial", "final"), range(fields["ranks"])):
        for block in (fields.get(key) or [[]] * fields["ranks"])[rank]:
            lists = [list(blocks) for blocks in fields[key]]
            lists[rank].remove(block)
            yield f"{key}, rank {rank}: no {block}", {**fields, key: lists}
            other = (rank + 1) % fields["ranks"]
            if block not in lists[other]:
                there = [[*held, block] if r == other else held for r, held in enumerate(lists)]
                text = f"{key}: {block} on rank {other}"
                yield f"{text}, not {rank}", {**fields, key: there}
                both = [[*held, block] if r == rank else held for r, held in enumerate(there)]
                yield f"{text} and {rank}", {**fields, key: both}


def wrong_scale(fields: Json) -> Iterator[Whole]:
    """A coefficient is another one, is twice there or is missing, or a final block is averaged."""
    for where, nodes in (*_scaled_instructions(fields), *_averaged(fields)):
        yield where, {**fields, "programs": nodes}
    for name, signature in (fields.get("phases") or {}).items():
        if signature.get("reduction", "sum") == "sum":
            for scale in _others(signature):
                phases = {**fields["phases"], name: {**signature, "scale": scale}}
                yield f"phase {name}: {scale}", {**fields, "phases": phases}


def _others(entry: Json) -> list[str]:
    """No scale, or a wrong one; or the one that is there once more."""
    scale = Fraction(entry.get("scale", "1"))
    return [str(scale * scale), "1"] if scale != 1 else ["1/2", "4"]


def _scaled_instructions(fields: Json) -> Iterator[Change]:
    for rank, index, node in places(fields, "compute"):
        for scale in _others(node):
            yield f"{at(rank, index)}: {scale}", changed(fields, rank, index, scale=scale)
    for members in calls(fields, *REDUCING):
        for scale in _others(node_at(fields, members[0])):
            text = f"{at(*members[0])}: {scale}"
            yield from one_or_all(fields, members, text, entered(scale=scale))


def _averaged(fields: Json) -> Iterator[Change]:
    """Ranks average a block that they all end with: harmless over the right count."""
    final = fields.get("final") or []
    for block in dict.fromkeys(block for blocks in final for block in blocks):
        group = [rank for rank, blocks in enumerate(final) if block in blocks]
        for count in (len(group), len(group) + 1) if len(group) > 1 else ():
            mean = {"op": "all_reduce", "group": group, "block": block, "scale": f"1/{count}"}
            nodes = enumerate(fields["programs"])
            yield (
                f"{block}: {mean['scale']}",
                [[*of_rank, mean] if rank in group else of_rank for rank, of_rank in nodes],
            )


SEVERAL_WAYS: dict[str, Way] = {
    "missing block": missing_block,
    "turned blocks": turned_blocks,
    "moved block": moved_block,
    "other block": other_block,
}
WAYS: dict[str, Way] = {
    "swapped messages": exchanged(of(*POSTS)),
    "dropped message": one_or_both_sides(left_out),
    "duplicated message": one_or_both_sides(repeated),
    "retargeted message": retargeted_message,
    "wrong peer": wrong_peer,
    "wrong tag": one_or_both_sides(other_tag),
    "wrong block": wrong_block,
    "missing wait": each_place(without, of("wait")),
    "doubled wait": each_place(twice, of("wait")),
    "moved wait": moved_wait,
    "early overwrite": early_overwrite,
    "swapped collectives": exchanged(of(*COLLECTIVES)),
    "missing reduction": each_reduction(left_out, without),
    "doubled reduction": each_reduction(repeated, twice),
    "forgotten sum": forgotten_sum,
    "wrong group": wrong_group,
    "wrong root": wrong_root,
    "wrong reduction": wrong_reduction,
    "wrong slice": wrong_slice,
    "wrong operand": wrong_operand,
    "missing product": each_place(without, products),
    "doubled product": doubled_product,
    "swapped products": exchanged(products),
    "rank a step late": late_rank,
    "early free": early_free,
    "missing free": each_place(without, of(*MEMORY)),
    "doubled free": each_place(twice, of(*MEMORY)),
    "wrong parts": wrong_parts,
    "wrong place": wrong_place,
    **SEVERAL_WAYS,
}
"""What a mutant is called -> the changes of that way to a program's instructions."""
FIELD_WAYS: dict[str, Callable[[Json], Iterator[Whole]]] = {
    "wrong amount": wrong_amount,
    "block elsewhere": wrong_home,
    "wrong scale": wrong_scale,
}
"""What a mutant is called -> the changes of that way to its other fields."""
PROGRAM_WAYS = (*WAYS, *FIELD_WAYS)


def changes_of(way: str, fields: Json) -> Iterator[Whole]:
    """Every change of one way to a program."""
    if way in FIELD_WAYS:
        return FIELD_WAYS[way](fields)
    return ((where, {**fields, "programs": nodes}) for where, nodes in WAYS[way](fields))
