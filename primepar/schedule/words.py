"""The sentences about violations and map faults: the only place where evidence becomes prose.

A sentence states what was expected, what was got, where, and what to write instead. Nothing reads
it back: whoever needs the places or the blocks of a violation has its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from primepar.schedule.effects import effects
from primepar.schedule.evidence import (
    MOST_COUNTED,
    Absent,
    Cycle,
    Data,
    Disagreement,
    Homeless,
    Leaked,
    Lost,
    MapFault,
    MeshSides,
    Misaligned,
    Miscomputed,
    Miscovered,
    Misshapen,
    NoStep,
    NotPosted,
    Nowhere,
    Origin,
    OtherNumber,
    OtherThanFormula,
    OutOfRange,
    Outsider,
    OverFormula,
    OverMemory,
    Place,
    Race,
    SharedElements,
    Side,
    Term,
    Unmatched,
    Violation,
    WrongEnd,
    WrongRead,
    WrongTraffic,
    first_wrong,
)
from primepar.schedule.program import IRecv as PostedReceive
from primepar.schedule.program import Program, Recv
from primepar.schedule.program_file import instruction_line
from primepar.schedule.signature import Scale

MOST_RANKS = 8
"""Ranks that a sentence lists."""
MOST_BLOCKS, MOST_SENT, MOST_TERMS = 4, 3, 4
"""Blocks, instructions and terms that a sentence lists."""
OFTEN: Mapping[Scale, str] = {0: "never", 1: "once", 2: "twice"}
TRANSPORT_ADVICE = (
    "post them in one order on both ranks, start them in one group, or give them more slots or "
    "communicators of their own"
)
NCCL_ADVICE = "post them in one order on both ranks, and in one group only what may wait together"


def sentence(violation: Violation, program: Program) -> str:
    """One sentence about a violation; of a cycle also a line for each of its ranks."""
    return _Words(program).sentence(violation)


def order_sentence(cycle: Cycle, program: Program, advice: str = TRANSPORT_ADVICE) -> str:
    """The first two operations that wait for each other in the order of a communicator."""
    texts = [_Words(program).place(place) for place, _ in cycle.waits]
    together = "wait for each other" if len(texts) > 1 else "waits for itself"
    return f"{' and '.join(texts)} {together}: {advice}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in a sentence, `0,1,2`: the first of them, and how many more there are."""
    shown = ",".join(map(str, ranks[:MOST_RANKS]))
    more = len(ranks) - MOST_RANKS
    return f"{shown} and {more} more" if more > 0 else shown


def sub_operator_text(sub_operator: Mapping[str, int]) -> str:
    """A sub-operator in a sentence, `(M=0, N=1, K=0)`."""
    return f"({', '.join(f'{dim}={index}' for dim, index in sub_operator.items())})"


def term_text(term: Term) -> str:
    """A term in a sentence: `forward product (M=0, N=1, K=0)`, or the block whose data it is."""
    if term.phase is None:
        return f"{term.block} from before" if term.is_before else term.block
    if term.sub_operator is None:
        slices = ", ".join(map(str, term.slices))
        return f"{term.phase} part {slices or 0} of {term.block}"
    return f"{term.phase} product {sub_operator_text(term.sub_operator)}"


class _Words:
    def __init__(self, program: Program) -> None:
        self.program = program

    def on_rank(self, index: int, side: Side | None = None, rank: int = 0) -> str:
        """`instruction 3 (send X -> 1) at train.py:42`; of a side only its message of a group."""
        node = self.program.programs[rank][index]
        posts = effects(node, rank).posts
        shown = posts[side[2]] if side is not None and posts else node
        line = "" if shown.source is None else f" at {shown.source}"
        return f"instruction {index} ({instruction_line(shown)}){line}"

    def place(self, place: Place | Side) -> str:
        """`rank 0, instruction 3 (send X -> 1) at train.py:42`."""
        rank, index, *part = place
        side = (rank, index, part[0]) if part else None
        return f"rank {rank}, {self.on_rank(index, side, rank)}"

    def sentence(self, violation: Violation) -> str:
        match violation:
            case Unmatched(side=side, peer=peer, is_call=True):
                return (
                    f"{self.place(side)}: expected rank {peer} to make the matching call, got none "
                    "that is left there: add it, or take the rank out of the group"
                )
            case Unmatched(side=side, peer=peer):
                post = effects(self.program.programs[side[0]][side[1]], side[0]).posts[side[2]]
                is_receive = isinstance(post, Recv | PostedReceive)
                other, verb = ("send", "to") if is_receive else ("recv", "from")
                return (
                    f"{self.place(side)}: expected a {other} {verb} rank {side[0]} on rank {peer} "
                    "to match, got none that is left: add it there, or remove this one"
                )
            case Outsider(side=side):
                return (
                    f"{self.place(side)}: expected a group with rank {side[0]} in it, got one "
                    "without: add it, or drop the call"
                )
            case NotPosted(place=place, request=request):
                return (
                    f"{self.place(place)}: expected a request that is in flight, got {request!r}, "
                    "which is not: post it before, and wait for it once"
                )
            case Disagreement():
                return f"{self.place(violation.side)}: {self.disagreement(violation)}"
            case Cycle(in_order=True):
                return order_sentence(violation, self.program)
            case Cycle():
                return self.cycle(violation)
            case Race():
                return self.race(violation)
            case SharedElements(place=place, block=block, other=other_block, tensor=tensor):
                return (
                    f"{self.place(place)}: expected disjoint blocks from one collective, got "
                    f"{block} and {other_block}, which share elements of {tensor}: "
                    "name blocks of one cut"
                )
            case Leaked(place=place, request=request):
                return (
                    f"{self.place(place)}: expected a wait for {request!r}, got none before the "
                    "request is posted again or the program ends: add the wait"
                )
            case Miscovered():
                return self.miscovered(violation)
            case Absent():
                return self.absent(violation)
            case Misshapen():
                return f"{self.place(violation.place)}: {_misshapen(violation)}"
            case WrongRead():
                return self.wrong_read(violation)
            case WrongEnd():
                return self.wrong_end(violation)
            case Lost(block=block):
                return (
                    f"{block}: expected it in final on some rank, or read when it is finished, got "
                    "neither: list it where it ends, or give it a home"
                )
            case OverMemory():
                return self.over_memory(violation)
            case WrongTraffic():
                return self.wrong_traffic(violation)

    def disagreement(self, wrong: Disagreement) -> str:
        first, expected, got = self.place(wrong.other), _plain(wrong.expected), _plain(wrong.got)
        match wrong.claim:
            case "tag":
                return (
                    f"expected tag {expected}, got tag {got} from {first}: messages match in order "
                    "and tags do not select them, so post them in one order on both ranks"
                )
            case "collective":
                return (
                    f"expected to meet {first}, got another collective: "
                    "call them in one order on all of their ranks"
                )
            case "blocks":
                return (
                    f"expected {expected} blocks as in {first}, got {got}: "
                    "list the same on all of the group's ranks"
                )
            case "lengths":
                return (
                    f"expected {expected} blocks, one for each rank of the group, "
                    f"got {got}: list one for each"
                )
            case "elements":
                return (
                    f"expected {expected} elements as in {first}, got {got}: "
                    "send and receive blocks of one size"
                )
            case "group" | "root" | "reduction" | "scale":
                where = "the group's ranks"
            case _:
                return (
                    f"expected {wrong.claim} {expected} as in {first}, "
                    f"got {got}: write the same on all of its ranks"
                )
        return (
            f"expected {wrong.claim} {expected} as in {first}, got {got}: "
            f"write the same on all of {where}"
        )

    def cycle(self, cycle: Cycle) -> str:
        ranks = [place[0] for place, _ in cycle.waits]
        fix = (
            "make collective calls and messages in one order on all of their ranks"
            if cycle.of_calls
            else "start both directions of an exchange together, in a group or by isend and irecv "
            "before the waits"
        )
        shown = [str(rank) for rank in ranks[:MOST_RANKS]]
        last = shown.pop() if len(ranks) <= MOST_RANKS else f"{len(ranks) - MOST_RANKS} more"
        names = f"{', '.join(shown)} and {last}"
        head = (
            f"rank {ranks[0]} waits for itself: {fix}"
            if len(ranks) == 1
            else f"ranks {names} wait for one another in a cycle: {fix}"
        )
        lines = [
            f"  rank {rank} waits in {self.on_rank(index, None, rank)} for rank {wanted[0]} "
            f"to reach {self.on_rank(wanted[1], wanted, wanted[0])}"
            for (rank, index), wanted in cycle.waits
        ]
        saved = ["  with buffered sends it would run to its end"] * cycle.ends_buffered
        return "\n".join([head, *lines, *saved])

    def race(self, race: Race) -> str:
        rank = race.place[0]
        if race.request is None:
            fix = "two messages of one group need two blocks"
        elif race.is_leaked:
            fix = f"add a wait for {race.request!r} before this instruction"
        else:
            fix = (
                f"move its wait for {race.request!r} before this instruction, or use another block"
            )
        posted = self.on_rank(race.posted[1], race.posted, rank)
        return (
            f"{self.place(race.place)}: expected {race.block} to be left alone while {posted} is "
            f"in flight, got it {race.access}: {fix}"
        )

    def miscovered(self, wrong: Miscovered) -> str:
        what = f"{wrong.phase} sub-operator {sub_operator_text(wrong.sub_operator)}"
        if wrong.is_outside:
            ((rank, index),) = wrong.places
            grid = (self.program.grid or {}).get(wrong.phase, {})
            limits = ", ".join(f"{dim} below {slices}" for dim, slices in grid.items())
            return (
                f"rank {rank}, instruction {index}: expected a {wrong.phase} sub-operator with "
                f"{limits}, got {sub_operator_text(wrong.sub_operator)}: "
                "give it one slice index for each dim of the grid"
            )
        if not wrong.places:
            return f"{what}: expected one rank to compute it, got none: add it"
        where = " and ".join(f"rank {rank}, instruction {index}" for rank, index in wrong.places)
        return f"{what}: expected one rank to compute it once, got {where}: keep one of them"

    def absent(self, wrong: Absent) -> str:
        memory, fix = {
            "not on the host": ("host memory", "evict it before"),
            "freed": ("memory", "free or evict it later"),
            "on the host": ("memory", "fetch it from host memory before"),
            "never there": ("memory", "receive or compute it before, or list it in initial"),
        }[wrong.why]
        return (
            f"{self.place(wrong.place)}: expected {wrong.block} in this rank's {memory}, got none "
            f"there: {fix}"
        )

    def wrong_read(self, wrong: WrongRead) -> str:
        where, block, want = self.place(wrong.place), wrong.block, wrong.want
        purpose = f"{wrong.phase} sub-operator {sub_operator_text(wrong.sub_operator)}"
        if wrong.of == "completion":
            what = self.miscount(wrong.data, wrong.origin)
            return f"{where}, which reads {block} for the {purpose}: {what}"
        fix = f"read {want}" if block != want else f"send {want} here before"
        return (
            f"{where}: expected the data of {want} in {block} for the {purpose}, "
            f"got that of {content_text(wrong.data.terms())}: {fix}"
        )

    def wrong_end(self, wrong: WrongEnd) -> str:
        block, on_host = wrong.block, wrong.memory == "host"
        if wrong.rank is None:
            return (
                f"{block}: expected the block on some rank at the end, got it on none: "
                "keep it where it is summed"
            )
        listed = f"{'host_' * on_host}final {block}"
        where = f"rank {wrong.rank}, {listed if wrong.memory else f'{block} at the end'}"
        if wrong.data is not None and wrong.of == "completion":
            return f"{where}: {self.miscount(wrong.data, wrong.origin)}"
        if wrong.data is not None:
            text = content_text(wrong.data.terms())
            fix = f"evict {block} itself" if on_host else f"send {block} here"
            return f"{where}: expected its own data at the end, got {text}: {fix}"
        if on_host and wrong.of == "completion":
            return (
                f"{where}: expected the finished sum in host memory, got no such block there: "
                "evict it after its last use"
            )
        if on_host:
            return (
                f"{where}: expected it in host memory at the end, got it not there: "
                "evict it after its last use"
            )
        if wrong.of == "completion":
            return (
                f"{where}: expected the finished sum, got no such block: "
                "keep it on this rank, or send it here"
            )
        actual = f"it on rank {wrong.holders[0]}" if wrong.holders else "it on no rank"
        return f"{where}: expected it at the end, got {actual}: send it here"

    def miscount(self, data: Data, origin: Origin | None) -> str:
        """What is wrong with a sum: a coefficient that all products have, else its first term.

        Example: `O[0,0]` is the sum of two products. If both are added on two ranks and then
        all-reduced, each is in it twice. With scale 1/4 on the all-reduce each is in it 1/2 times.
        """
        terms, origin = data.terms(), origin or Origin()
        term, is_common = first_wrong(terms, term_text)
        if term is None:
            text = content_text(terms)
            return (
                f"expected the {data.reduction} of its products, got {text}: "
                f"reduce it by {data.reduction}"
            )
        if is_common:
            products = [term for term in terms if term.phase is not None]
            several = len(products) > 1
            what, it = (
                (f"each {term.phase} product", "each") if several else (term_text(term), "it")
            )
            cause = likely_cause(Fraction(term.got), Fraction(term.required), origin.is_scaled)
            see = f": see {self.place(origin.fix)}" if origin.fix else ""
            counts = f"expected {what} {_often(term.required)}, got {it} {_often(term.got)}"
            return f"{counts}: {cause}{see}"
        expected = f"expected {term_text(term)} {_often(term.required)}, got it {_often(term.got)}"
        if term.got == 0 and origin.sent_from:
            return f"{expected}: send it here from {self.place(origin.sent_from)}"
        if term.got == 0:
            return f"{expected}: compute it"
        if origin.fix:
            return f"{expected}: fix {self.place(origin.fix)}"
        return f"{expected}: fix what is received under this name"

    def over_memory(self, wrong: OverMemory) -> str:
        rank, index = wrong.place
        where = f"rank {rank}, before its first instruction"
        if index >= 0:
            node = self.program.programs[rank][index]
            where = f"rank {rank}, instruction {index} ({instruction_line(node)})"
        return (
            f"{where}: expected at most {wrong.limit} live elements in {wrong.memory} memory, got "
            f"{sum(wrong.held.values())}: {largest(wrong.held)}: free one before, or allow more in "
            "memory"
        )

    def wrong_traffic(self, wrong: WrongTraffic) -> str:
        texts = [
            f"{count} by {self.on_rank(index, None, wrong.rank)}"
            for count, index in largest_sent(wrong)[:MOST_SENT]
        ]
        more = len(wrong.sent) - MOST_SENT
        by = ", ".join(texts) + (f" and {more} more" if more > 0 else "") or "it sends nothing"
        return (
            f"rank {wrong.rank}: expected {wrong.expected} elements to leave it, got {wrong.got}: "
            f"{by}: fix what it sends, or traffic"
        )


def largest(held: Mapping[str, int]) -> str:
    """The largest blocks with their elements, `W[0,0] 8, I[0,1] 4 and 3 more`."""
    order = sorted(held, key=lambda block: (-held[block], block))
    more = f" and {len(order) - MOST_BLOCKS} more" if len(order) > MOST_BLOCKS else ""
    return ", ".join(f"{block} {held[block]}" for block in order[:MOST_BLOCKS]) + more


def largest_sent(wrong: WrongTraffic) -> list[tuple[Fraction, int]]:
    """The instructions by which most elements leave a rank, those first."""
    return sorted(wrong.sent, key=lambda part: (-part[0], part[1]))


def content_text(terms: Sequence[Term]) -> str:
    """What a block holds: its terms with their counts; `zeros` if none."""
    texts = sorted(
        term_text(term) if term.got == 1 else f"{_times(term.got)} {term_text(term)}"
        for term in terms
        if term.got
    )
    more = len(texts) - MOST_TERMS
    return " + ".join(texts[:MOST_TERMS]) + f" + {more} more" * (more > 0) or "zeros"


def _misshapen(wrong: Misshapen) -> str:
    match wrong.why:
        case "operands":
            blocks = " and ".join(wrong.expected)
            return f"expected to read {blocks}, and nothing but these: list these"
        case "parts":
            return (
                f"expected to read the parts of {wrong.expected[0]}, side by side, and nothing but "
                "these: list these"
            )
        case "other data":
            return (
                f"expected data of the place of {wrong.expected[0]} in it, got data of another "
                "place: cut or join it before"
            )
        case "uneven":
            return "expected to read parts of one kind, and nothing but these: list these"
        case "sizes":
            one, other = wrong.expected
            return (
                f"expected blocks of one size in a sum, got {one} and {other}: cut or join one of "
                "them before"
            )


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _times(count: Scale) -> str:
    return f"{count if count <= MOST_COUNTED else f'more than {MOST_COUNTED}'} times"


def _often(count: Scale) -> str:
    return OFTEN.get(count) or _times(count)


def likely_cause(got: Fraction, required: Fraction, scaled: bool = False) -> str:
    """What a wrong coefficient comes from most often, and what to write instead.

    Example: 1/16 where 1/4 is required is a mean that is divided twice. 1/2 where 1/4 is required
    is a sum that two ranks add, or a mean over 2 instead of 4. `scaled` is whether one is applied.
    """
    ratio = got / required
    if required != 1 and got == required * required:
        return f"scale {required} is applied twice, so leave one out"
    if got == 1 and not scaled:
        return f"no scale is applied, so write scale {required} once"
    if required == 1 and got.numerator == 1:
        return f"scale {got} is applied to what needs none, so leave it out"
    if ratio.denominator == 1 and required == 1:
        return f"it is added {_often(ratio)}, so add it once or write scale {1 / ratio}"
    if got == required.numerator == 1:
        return f"it is added {_often(ratio)} after its scale, so add it once"
    if got.numerator == required.numerator == 1:
        mean = f"a mean over {got.denominator} instead of {required.denominator}"
        added = f"it is added {_often(ratio)}, or is " if ratio.denominator == 1 else "it is "
        return f"{added}{mean}"
    return f"the scales on its way make {got}, so multiply one of them by {1 / ratio}"


def mesh_text(mesh: MeshSides) -> str:
    """A mesh in a sentence, `s=2 (2x2 devices)`."""
    sides = ", ".join(f"{name}={length}" for name, length in mesh.sides.items()) or "any side"
    lengths = "x".join(map(str, mesh.axes.values())) or "1"
    return f"{sides} ({lengths} device{'s' * any(length > 1 for length in mesh.axes.values())})"


def map_sentence(mesh: MeshSides, fault: MapFault) -> str:
    """One sentence about what is wrong with a primitive on a mesh."""
    return f"{mesh_text(mesh)}: {_map_fault(fault)}"


def _map_fault(fault: MapFault) -> str:
    match fault:
        case Miscomputed(phase=phase, sub_operator=cell, devices=devices, computed=computed):
            what = f"{phase} sub-operator {sub_operator_text(cell)}: expected one device to compute"
            if devices:
                where = " and ".join(map(str, devices))
                return f"{what} it once, got {where}: give one of them another"
            counted = (
                f": only {computed.number} of {computed.total} are computed" if computed else ""
            )
            return f"{what} it, got none{counted}"
        case OtherNumber(phase=phase):
            return (
                f"{phase}: expected as many sub-operators as devices times steps, got another "
                "number"
            )
        case NoStep(steps=steps):
            return f"expected 1 step or more in each phase, got {steps}: change steps"
        case OutOfRange(device=device, tensor=None):
            return f"{device}: expected % and // by 1 or more, got less: use the length of a side"
        case OutOfRange(device=device, tensor=tensor):
            return f"{device}: expected the home of {tensor} in range, got another: wrap with %"
        case Nowhere():
            return _nowhere(fault)
        case Homeless():
            return _homeless(fault)
        case Misaligned(phase=phase, device=device, block=block, after=after, held=held):
            got = " ".join(held) or "another block"
            hop = ", or one hop away" * fault.may_hop
            return (
                f"{phase} starts on {device}: expected {block} here, got {got} from {after}: "
                f"end {after} where {phase} starts{hop}"
            )
        case OverFormula(sizes=sizes, device=device, stated=stated, got=live):
            return (
                f"{_sizes(sizes)}: expected at most {stated} live elements on each device, as held "
                f"states, got {live} on {device}: fix the formula"
            )
        case OtherThanFormula(sizes=sizes, stated=stated, got=total, ranks=ranks):
            return (
                f"{_sizes(sizes)}: expected {stated} elements to leave each device, as sent "
                f"states, got {total} that leave all {ranks}, {Fraction(total, ranks)} each: "
                "fix the formula"
            )


def _nowhere(fault: Nowhere) -> str:
    block, phase, step = fault.block, fault.phase, fault.device.step
    if fault.after is not None:
        return (
            f"{phase} starts on {fault.device}: expected {block} on some device at the end of "
            f"{fault.after}, got it on none: end {fault.after} with all blocks that {phase} starts "
            "with"
        )
    if fault.home is not None:
        return (
            f"{phase}, {fault.device}: expected {block} to be resident on some device, got it on "
            f"none: {_home_fix(fault.home)} one"
        )
    before = 0 if step is None else step - 1
    return (
        f"{phase}, {fault.device}: expected {block} to be on some device at t={before}, got it on "
        f"none: let a device use it at t={before}"
    )


def _homeless(fault: Homeless) -> str:
    block, resident = fault.block, fault.resident
    if fault.device is not None:
        return (
            f"{fault.phase}, {fault.device}: expected the sum {block} to have a home, got none: "
            f"{_home_fix(fault.tensor)} some device"
        )
    counted = f"only {resident.number} of {resident.total} blocks are resident" if resident else ""
    return (
        f"home of {fault.tensor}: expected {block} to be resident on some device, got it on none: "
        f"{counted or f'{_home_fix(fault.tensor)} one'}"
    )


def _home_fix(tensor: str) -> str:
    return f"let the home of {tensor} assign it to"


def _sizes(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{dim}={size}" for dim, size in sizes.items())
