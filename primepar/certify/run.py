"""Follows what every block holds, along one order in which the instructions of a program run.

Every product is a term of its own, and so is all data from before the program. Every read is a
claim: the block holds what its name requires. For example, after `O += I[0]*W[0]` on rank 0 and
`O += I[1]*W[1]` on rank 1 and an all-reduce of O, each rank holds both products once. If one rank
computed both, each sum counts one of them twice, and a read of O is wrong.

One order is enough. Messages match in order, so what a rank receives depends on no order of events;
and without races no access depends on when a message is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product
from typing import Any, Literal

from primepar.certify.contents import (
    ZERO,
    Content,
    HeldData,
    Leaf,
    Required,
    reduced,
)
from primepar.schedule import program as op
from primepar.schedule.deadline import in_time
from primepar.schedule.effects import effects, initial_blocks
from primepar.schedule.evidence import (
    Absent,
    Lost,
    Misshapen,
    Place,
    Side,
    Violation,
    Why,
    WrongEnd,
    WrongRead,
)
from primepar.schedule.ledger import Memory
from primepar.schedule.matching import Matches
from primepar.schedule.meaning import Meaning, Phase
from primepar.schedule.operators import PRODUCTS

WEIGHT_GRADIENT = PRODUCTS["gradient"].writes
"""The sum that has to end where the weight starts forward."""
Stretch = tuple[int, int, int]
"""Rank, first instruction and end: instructions that run without waiting in between.

Only the last one may have to wait for another rank; it returns when the next stretch starts."""
Note = Callable[[Place, str, Content, "Leaf | None"], None]
"""Is given the sums that products and collectives write, with the product that is added if any."""


class Run:
    """The contents on every device and host of a program that is followed.

    `wrong` collects what is wrong, in the order in which it happens. A place in `racing`, with its
    block, is not looked at: it is wrong already.
    """

    def __init__(
        self,
        matches: Matches,
        meaning: Meaning,
        racing: frozenset[tuple[Place, str]] = frozenset(),
        note: Note | None = None,
    ) -> None:
        self.matches, self.program, self.meaning = matches, matches.program, meaning
        self.required = Required(meaning)
        self.wrong: list[Violation] = []
        self._racing, self._note = racing, note
        ranks = range(self.program.ranks)
        self.device: list[dict[str, Content]] = [{} for _ in ranks]
        self.host: list[dict[str, Content]] = [{} for _ in ranks]
        self._freed: list[set[str]] = [set() for _ in ranks]
        self._sent: dict[Side, tuple[Content, ...]] = {}
        self._met: dict[Side, Sequence[Content]] = {}
        """First side of a collective -> what it reduces to, once for all members."""
        self._waiting: list[Place | None] = [None for _ in ranks]
        self._first_step: list[tuple[str | None, bool]] = [(None, False) for _ in ranks]
        """The phase that a rank is in, and whether it is in the first step of a later phase."""
        self._finished: set[str] = set()
        """Blocks that a product has read with the data that their names require."""
        self._passed: list[tuple[Content, str]] = []
        """Reads that require nothing by themselves, and may be the last ones of an output."""
        for rank, blocks in enumerate(self.program.initial or ()):
            for block in blocks:
                self.device[rank][block] = self.required.initial(block)
        for rank, blocks in enumerate(self.program.host_initial or ()):
            self.host[rank] = {block: self.required.initial(block) for block in blocks}
        if self.program.initial is None:
            # A sum has the data that any rank uses before it writes it, whichever rank is first.
            for block in chain.from_iterable(initial_blocks(self.program)):
                self.required.initial(block)

    def follow(self, stretches: Iterable[Stretch]) -> None:
        """Run stretches in an order in which each comes after everything that it waits for."""
        for rank, first, end in in_time(stretches):
            waited = self._waiting[rank]
            # The last instruction of the rank's previous stretch returns now, as its level comes
            # now. What it receives has been sent in a stretch before this one.
            if waited is not None:
                self._return(waited)
            nodes = self.program.programs[rank]
            for index in range(first, end):
                node = nodes[index]
                if type(node) is op.Compute:
                    self._compute((rank, index), node)
                # A wait reads nothing when it starts; what it awaits is written when it returns.
                elif type(node) is not op.Wait:
                    self._start((rank, index), node)
            self._waiting[rank] = (rank, end - 1) if end > first else None

    def _start(self, place: Place, node: op.Instruction) -> None:
        """Read what is sent; a local instruction writes its blocks at once."""
        rank, device = place[0], self.device[place[0]]
        match node:
            case op.Alloc(block=block):
                device[block] = ZERO
            case op.Free(block=block):
                self._take(place, block)
            case op.Evict(block=block):
                self.host[rank][block] = self._take(place, block)
            case op.Fetch(block=block):
                device[block] = self._fetched(place, block)
            case op.Cut() | op.Join():
                self._cut_or_join(place, node)
            case op.Group(body=body):
                for part, message in enumerate(body):
                    # The receives of a group have no data yet: they are written when it returns. So
                    # an exchange of one block for another sends the old data on both ranks.
                    if isinstance(message, op.Send):
                        self._sent[*place, part] = (self._read(place, message.block),)
            case _:
                reads = self.matches.effects[rank][place[1]].reads
                self._sent[*place, 0] = tuple([self._read(place, block) for block in reads])

    def _return(self, place: Place) -> None:
        """Write what an instruction has received when it returns."""
        rank, awaited = place[0], self.matches.awaited(place)
        for side in awaited:
            post = self.matches.post(side)
            if isinstance(post, op.Recv | op.IRecv):
                # A message is delivered once, so its content can go. What a collective sent stays,
                # for its other members.
                send = self.matches.partners[side][0]
                self.device[rank][post.block] = self._sent.pop(send)[0]
            elif isinstance(post, op.Collective):
                writes = self.matches.effects[rank][side[1]].writes
                for block, content in zip(writes, self._collected(side, post), strict=True):
                    self._write(side[:2], block, content)
        phase, is_first = self._first_step[rank]
        # A blocking send awaits the receiver, but no data: the rank's first step goes on.
        if is_first and awaited and type(self.matches.node(place)) is not op.Send:
            self._first_step[rank] = (phase, False)

    def _write(self, place: Place, block: str, content: Content, leaf: Leaf | None = None) -> None:
        self.device[place[0]][block] = content
        if self._note is not None:
            self._note(place, block, content, leaf)

    def _take(self, place: Place, block: str) -> Content:
        """Read a block that is not on the device afterwards."""
        content = self._read(place, block)
        self._freed[place[0]].add(block)
        del self.device[place[0]][block]
        return content

    def _read(
        self, place: Place, block: str, of: Literal["placement", "alignment"] = "placement"
    ) -> Content:
        """The content of a block. A missing one is wrong, unless it is there from the start.

        What follows is judged as if the block had been there, so that one mistake is one violation.
        """
        rank = place[0]
        device, freed = self.device[rank], self._freed[rank]
        if block in device:
            return device[block]
        # Without `initial` nothing states what is there, so the first read of a name finds its
        # data. After a free this does not hold: the block was there, and is gone.
        if self.program.initial is None and block not in freed:
            device[block] = self.required.initial(block)
            return device[block]
        # A block in flight may or may not be there. The race is the violation.
        if (place, block) not in self._racing:
            why: Why = "on the host" if block in self.host[rank] else "never there"
            self.wrong.append(Absent(of, place, block, "freed" if block in freed else why))
        device[block] = self.required.datum(block)
        return device[block]

    def _fetched(self, place: Place, block: str) -> Content:
        rank = place[0]
        if block in self.host[rank]:
            return self.host[rank].pop(block)
        known = block in self.device[rank] or block in self._freed[rank]
        if self.program.initial is not None or known:
            self.wrong.append(Absent("placement", place, block, "not on the host"))
        return self.required.datum(block)

    def _compute(self, place: Place, node: op.Compute) -> None:
        """Add a product, or a sum of blocks, to what the block holds.

        What is added to an output, or to a scratch of one, is added by the reduction of its phase:
        to `m[0]` of a phase with reduction max, `compute m[0] += u` is max(m[0], u).
        """
        leaf: Leaf | None = None
        added: tuple[Content | Leaf, ...]
        if node.phase is None or node.sub_operator is None:
            contents = [self._read(place, block) for block in node.reads]
            # An addition may read unfinished sums: that is how they are finished. So its operands
            # are no claims, and are kept for `_check_none_lost` alone.
            self._passed += zip(contents, node.reads, strict=True)
            added = tuple(contents)
            summed = node.reads
            # O' is a second buffer of O: what is added there is added as in O.
            phase = self.meaning.maker(node.accumulates.rstrip("'"))
        else:
            phase = self.meaning.phases[node.phase]
            self._operands(place, phase, node)
            leaf = self.required.leaf(phase, node.sub_operator)
            added = (leaf,)
            # Nearly always what is added is a part of the block that it is added to.
            same = leaf[0] == self.required.cells(node.accumulates)
            summed = () if same else (phase.writes.block(node.sub_operator),)
        if summed:
            self._check_sizes(place, (node.accumulates, *summed))
        if node.scale != "1":
            added = (reduced("sum", added, node.scale_value),)
        # A block that is not there yet starts with this product; there is no zero to add it to.
        before = self.device[place[0]].get(node.accumulates)
        if before is not None:
            added = (before, *added)
        total = reduced("sum" if phase is None else phase.reduction, added)
        self._write(place, node.accumulates, total, leaf)

    def _check_sizes(self, place: Place, blocks: Sequence[str]) -> None:
        """Check that blocks that are added have one size, where the program defines their sizes.

        This is no question of what they hold, so it is asked also where nothing reads the sum: with
        2 elements in y[0] and 4 in v[0], a run of `compute u += y[0], v[0]` breaks off.
        """
        sizes = {size: block for block in blocks if (size := self.meaning.elements(block))}
        if len(sizes) > 1:
            self.wrong.append(Misshapen(place, "sizes", tuple(sizes.values())[:2]))

    def _operands(self, place: Place, phase: Phase, node: op.Compute) -> None:
        """Check that each operand of a product holds what the sub-operator needs."""
        sub_operator = node.sub_operator or {}
        of = self._property(place[0], phase.name)
        names = [template.block(sub_operator) for template in phase.reads]
        for block, want in zip(node.reads, names, strict=False):
            content = self._read(place, block, of)
            # `want` follows from the slices of the sub-operator, `block` is where the program reads
            # it. A second buffer I[0,1]' is right for I[0,1] if it holds the data of I[0,1].
            if self.required.holds(content, want):
                self._finished.add(want)
                continue
            if (place, block) in self._racing:
                continue
            data = HeldData(self.required, content, want)
            wrong = "completion" if data.is_unfinished else of
            self.wrong.append(WrongRead(wrong, place, block, want, phase.name, sub_operator, data))
        if len(node.reads) != len(names):
            self.wrong.append(Misshapen(place, "operands", tuple(names), of))

    def _property(self, rank: int, phase: str) -> Literal["placement", "alignment"]:
        """What a wrong operand refutes: alignment in the first step of a rank's later phase.

        A tensor that is kept for a later phase has to be where the first step of that phase needs
        it. The step ends where the rank next waits for a receive or a collective.
        """
        current, is_first = self._first_step[rank]
        # The first phase of a rank is no later one: nothing was kept for it.
        if phase != current:
            is_first = current is not None
            self._first_step[rank] = (phase, is_first)
        return "alignment" if is_first else "placement"

    def _cut_or_join(self, place: Place, node: op.Cut | op.Join) -> None:
        """Cut or join: the parts have the cells of the whole, each once."""
        rank, cells_of = place[0], self.required.cells
        of = effects(node, rank)
        held = [self._read(place, block) for block in of.reads]
        self._passed += zip(held, of.reads, strict=True)
        for block in of.frees:
            self._freed[rank].add(block)
            self.device[rank].pop(block, None)
        named = [self.meaning.place(block) for block in (node.block, *node.blocks)]
        parts = Counter(chain(*map(cells_of, node.blocks)))
        # y[0] and y[1] are the halves of y.whole[0]; y[0] twice has as many elements, but one half
        # is missing.
        if None in named or parts != Counter(cells_of(node.block)):
            self.wrong.append(Misshapen(place, "parts", (node.block,)))
            return
        filled = [content for content in held if content is not ZERO]
        for content, block in zip(held, of.reads, strict=True):
            # A copy under another name would be cut as if it were the named block.
            if content is not ZERO and content.cells != cells_of(block):
                self.wrong.append(Misshapen(place, "other data", (block,)))
                return
        # A join of a finished half and of one that lacks a product is a block that no one addition
        # finishes. So it is refused here, and not at some later read.
        is_even = len(filled) in (0, len(held)) and self.required.is_uniform(filled)
        if isinstance(node, op.Join) and not is_even:
            self.wrong.append(Misshapen(place, "uneven", (node.block,)))
        values = {cell: value for content in filled for cell, value in content.values.items()}
        for block in of.writes:
            cells = [cell for cell in cells_of(block) if cell in values]
            content = Content(cells_of(block), values={cell: values[cell] for cell in cells})
            self.device[rank][block] = content if filled else ZERO

    def _collected(self, side: Side, node: op.Collective) -> Sequence[Content]:
        """The contents of the blocks that a member of a collective writes, in order."""
        rank, calls = side[0], self.matches.partners[side]
        sides = {call[0]: call for call in calls}
        sent = [self._sent[sides[member]] for member in node.group]
        index = node.group.index(rank)
        match node:
            # The root writes nothing: what it holds stays.
            case op.Broadcast(root=root):
                return () if rank == root else self._sent[sides[root]]
            case op.Scatter(root=root):
                return (self._sent[sides[root]][index],)
            case op.AllReduce() | op.Reduce() | op.ReduceScatter():
                if calls[0] not in self._met:
                    # Once for all members: they then share one content, which is summed up once.
                    self._met[calls[0]] = [
                        reduced(node.reduction, contents, node.scale_value)
                        for contents in zip(*sent, strict=True)
                    ]
                results = self._met[calls[0]]
                if isinstance(node, op.Reduce) and rank != node.root:
                    return ()
                return (results[index],) if isinstance(node, op.ReduceScatter) else results
            case op.AllGather():
                return [contents[0] for contents in sent]
            case op.Gather(root=root):
                return [contents[0] for contents in sent] if rank == root else ()
            case op.AllToAll():
                # Member i receives the i-th block of each member, in the order of the members.
                return [contents[index] for contents in sent]
            case _:
                return ()

    # The end

    def end(self, is_right: bool) -> None:
        """Check what every block holds at the end, of a program that ends.

        With `final` these are the blocks that it lists, each on its rank, and those of `host_final`
        in host memory; and every output of the grid must be finished in one of them, or where it is
        read. Without `final` every output of the grid must be finished on some rank. `is_right` is
        whether coverage and races are.
        """
        if self.program.final is None:
            for block in in_time(self._outputs()):
                self._check_anywhere(block)
            return
        listed: tuple[tuple[Memory, Any], ...] = (
            ("device", self.program.final), ("host", self.program.host_final),
        )  # fmt: skip
        for memory, lists in listed:
            for rank, blocks in enumerate(lists or ()):
                for block in in_time(blocks):
                    self._check_final(rank, block, memory)
                    # What is listed was just checked. If it is wrong, that is its violation, and it
                    # is not lost too.
                    self._finished.add(block)
        self._check_none_lost(is_right)

    def _outputs(self) -> list[str]:
        """The names of the blocks that the phases of the grid write."""
        names: dict[str, None] = {}
        for phase in self.meaning.phases.values():
            if phase.grid is None:
                continue
            dims = [dim for dim in phase.grid if dim in phase.writes.dims]
            for slices in product(*(range(phase.grid[dim]) for dim in dims)):
                names[phase.writes.block(dict(zip(dims, slices, strict=True)))] = None
        return list(names)

    def _holders(self, block: str) -> tuple[int, ...]:
        # By name: a copy that is called otherwise is no place where the block ends.
        return tuple([rank for rank, device in enumerate(self.device) if block in device])

    def _check_final(self, rank: int, block: str, memory: Memory) -> None:
        """Check a listed block: a sum refutes completion, other data alignment.

        A weight gradient that ends on another rank refutes alignment too: it has to be where the
        weight starts forward.
        """
        content = (self.device if memory == "device" else self.host)[rank].get(block)
        phase = self.meaning.maker(block)
        if content is not None and (
            self.meaning.place(block) is None or self.required.holds(content, block)
        ):
            return
        elsewhere = self._holders(block) if memory == "device" else ()
        strays = content is None and elsewhere and phase and phase.writes.tensor == WEIGHT_GRADIENT
        self._add_end(
            "alignment" if phase is None or strays else "completion",
            rank, block, memory, content, elsewhere,
        )  # fmt: skip

    def _check_anywhere(self, block: str) -> None:
        """Check an output that may end finished on any rank."""
        holders = self._holders(block)
        contents = [self.device[rank][block] for rank in holders]
        if any(self.required.holds(content, block) for content in contents):
            return
        for rank, content in zip(holders, contents, strict=True):
            self._add_end("completion", rank, block, None, content, holders)
            return
        self._add_end("completion", None, block, None, None, ())

    def _add_end(
        self,
        of: Literal["completion", "alignment"],
        rank: int | None,
        block: str,
        memory: Memory | None,
        content: Content | None,
        holders: tuple[int, ...],
    ) -> None:
        data = None if content is None else HeldData(self.required, content, block)
        self.wrong.append(WrongEnd(of, rank, block, memory, data, holders))

    def _check_none_lost(self, is_right: bool) -> None:
        """Check that every output of the grid is kept, or read when it is finished.

        Where something else is wrong, only that it is kept or read: a sum that lacks a product is
        wrong for that reason, and not lost. An operand of a product was finished if it was right.
        What else was read is looked at only if an output is neither among these nor in `final`.
        """
        cells, place = self.required.cells, self.meaning.place
        outputs = self._outputs()
        if not is_right or self.wrong:
            reads = (effects(node, 0).reads for node in chain(*self.program.programs)
                     if isinstance(node, op.Compute | op.Cut | op.Join))  # fmt: skip
            kept = {*map(place, self._finished), *map(place, chain.from_iterable(reads))}
            self.wrong += [Lost(block) for block in outputs if place(block) not in kept]
            return
        # All else is right, so a sum that was read as an operand was finished then, and that is
        # enough: O of forward, read by backward and freed, is not lost.
        finished = set(chain.from_iterable(map(cells, self._finished)))
        missing = [block for block in outputs if not finished.issuperset(cells(block))]
        for content, block in self._passed if missing else ():
            if self.meaning.maker(block) is not None and self.required.holds(content, block):
                finished.update(cells(block))
        self.wrong += [Lost(block) for block in missing if not finished.issuperset(cells(block))]
