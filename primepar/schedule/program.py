"""The program: for each rank an ordered list of instructions. Every reader runs this and only this.

    program    = { format, version, ranks, programs, grid?, shape?, initial?, final?,
                   host_initial?, host_final?, phases?, tensors?, memory?, traffic? }
    programs   = [ [ instruction ... ]  per rank ]
    initial    = [ [ block ... ]  per rank ]      blocks on each rank before the first instruction
    final      = [ [ block ... ]  per rank ]      blocks on each rank, finished, after the last one
    host_initial, host_final                      the same in host memory, with initial and final
    grid       = { phase: { dim: slices } }       sub-operators that must be covered, each once
    shape      = { dim: elements }                sizes of the operator, for bytes and execution
    phases     = { phase: { reads, writes, reduction?, scale? } }   in addition to the linear ones
    tensors    = { tensor: { cuts, of? } }        offsets of its blocks in it, in elements
    memory     = { device?, host? }               elements that may be live at once on a rank
    traffic    = [ elements ]                     that leave each rank; a number or "40/3"

    compute    = reads, accumulates, phase?, sub_operator?, scale?, again?
                                               block += scale * product; without a sub-operator
                                               block += scale * sum of the reads
    send recv  = peer, block, tag                              until both sides are there
    isend irecv= peer, block, tag, request                     posted; finished by wait
    wait       = request
    group      = body of send and recv, request?               start together, return when all done
    all_reduce     = group, block, also?, reduction, scale?    block <- scale * sum over the group
    reduce         = group, block, root, reduction, scale?     the root's block <- scale * sum
    broadcast      = group, block, root                        block <- the root's block
    all_gather     = group, block, blocks                      blocks[i] <- i-th member's block
    reduce_scatter = group, blocks, block, reduction, scale?   block <- scale * sum of own place
    all_to_all     = group, blocks, into                       into[i] <- i-th member's blocks[own]
    gather         = group, block, root, blocks             the root's blocks[i] <- i-th block
    scatter        = group, block, root, blocks             i-th block <- the root's blocks[i]
    barrier        = group
    `also` lists more blocks, each reduced like the first, in the same call.
    A scale is a positive fraction, "1/64"; a reduction by max or min has none.
    A collective with a request is posted and finished by wait, as isend and irecv are.
    alloc free     = block                                     a buffer appears or goes
    fetch evict    = block                                     host -> device, device -> host
    cut            = block, blocks, in_place?                  its parts, under their own names
    join           = blocks, block, in_place?                  the whole of its parts
    A cut in place gives the block's memory to its parts, a join in place theirs to the whole.
    Computed again: what the rank has computed before, and is not counted twice by coverage.
    source?        of any instruction: where it was written, "train.py:42"
    count? dtype?  of messages and collectives: elements of each block, and their type

A block is a name. Linear operators name theirs `I[m,n]`, `W[n,k]`, `O[m,k]` and `dI`, `dW`, `dO`,
with one slice index for each dim that the grid names. `phases` and `tensors` give other names a
meaning. Any other name is data without one. `primepar.schedule.meaning` defines what names mean.
Messages match in order per (source, destination, communicator): a tag is a claim that is checked.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal

from msgspec import Meta, Struct

from primepar.schedule.operators import DIMS, PHASES, PRODUCTS, Dim
from primepar.schedule.signature import (
    LARGEST,
    Bound,
    Coefficient,
    Name,
    Natural,
    Reduction,
    Scale,
    Signature,
    Tensor,
    check_again,
    check_scale,
    coefficient,
    reduction_into,
)

Block = Name
Rank = Natural
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Ranks = Annotated[tuple[Rank, ...], Meta(min_length=1)]
Blocks = Annotated[tuple[Block, ...], Meta(min_length=1)]
Elements = Rank | Annotated[str, Meta(pattern=r"^[0-9]{1,18}/[1-9][0-9]{0,17}$")]


class Node(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag_field="op",
    omit_defaults=True,
    gc=False,
    kw_only=True,
):
    """Base of the instructions; the JSON field `op` names which.

    They are trees, so the collector of cycles need not look at them (`gc`).
    """

    source: Name | None = None
    """Where it was written, `train.py:42`; messages name it."""


class CountedTransfer(Node, frozen=True, kw_only=True):
    """What moves data between ranks. All of its sides that state a claim must state the same."""

    count: Rank | None = None
    """Elements of `block`, or of each of `blocks`; with `also`, of all blocks together."""
    dtype: Name | None = None


# Collectives: calls that all ranks of a group make together

_WRITTEN = {
    "all_gather": "blocks", "all_to_all": "into", "all_reduce": "reduced", "gather": "blocks",
}  # fmt: skip
"""Collective -> its field with several blocks that it writes."""


class _Collective(CountedTransfer, frozen=True):
    group: Ranks
    communicator: Name = "world"
    request: Name | None = None

    def __post_init__(self) -> None:
        if len(set(self.group)) != len(self.group):
            raise ValueError(f"expected every rank of a group once, got {list(self.group)}")
        root = getattr(self, "root", None)
        if root is not None and root not in self.group:
            raise ValueError(f"expected a root out of the group {list(self.group)}, got {root}")
        check_scale(getattr(self, "scale", "1"), getattr(self, "reduction", "sum"))
        self._check_names()

    @property
    def scale_value(self) -> Scale:
        """The coefficient of a reduction."""
        return coefficient(getattr(self, "scale", "1"))

    def _check_names(self) -> None:
        """Of what it writes no name may occur twice: the later data would replace the earlier."""
        field = _WRITTEN.get(str(self.__struct_config__.tag))
        names = getattr(self, field) if field else ()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            several = field != "reduced"
            where = f"of {field}" if several else "in block and also"
            fix = "give each member's data a name of its own" if several else "reduce it once"
            raise ValueError(
                f"expected every name {where} once, got {twice} {names.count(twice)} times: {fix}"
            )


class AllReduce(_Collective, frozen=True, tag="all_reduce", kw_only=True):
    """Each block, also those of `also`, becomes `scale` times the reduction over the group."""

    block: Block
    also: tuple[Block, ...] = ()
    reduction: Reduction = "sum"
    scale: Coefficient = "1"

    @property
    def reduced(self) -> Blocks:
        """All blocks of the call, in order; members reduce those at the same place."""
        return (self.block, *self.also)


class Reduce(_Collective, frozen=True, tag="reduce", kw_only=True):
    """The root's block becomes `scale` times the reduction over the group."""

    block: Block
    root: Rank
    reduction: Reduction = "sum"
    scale: Coefficient = "1"


class Broadcast(_Collective, frozen=True, tag="broadcast", kw_only=True):
    """Every member's block becomes the root's."""

    block: Block
    root: Rank


class AllGather(_Collective, frozen=True, tag="all_gather", kw_only=True):
    """`blocks[i]` becomes the i-th member's `block`."""

    block: Block
    blocks: Blocks


class ReduceScatter(_Collective, frozen=True, tag="reduce_scatter", kw_only=True):
    """The i-th member's `block` becomes `scale` times the reduction of everyone's `blocks[i]`."""

    blocks: Blocks
    block: Block
    reduction: Reduction = "sum"
    scale: Coefficient = "1"


class AllToAll(_Collective, frozen=True, tag="all_to_all", kw_only=True):
    """On member j, `into[i]` becomes the i-th member's `blocks[j]`."""

    blocks: Blocks
    into: Blocks


class Barrier(_Collective, frozen=True, tag="barrier"):
    """Return when every member is there."""


class Gather(_Collective, frozen=True, tag="gather", kw_only=True):
    """On the root, `blocks[i]` becomes the i-th member's `block`; others list no blocks."""

    block: Block
    root: Rank
    blocks: tuple[Block, ...] = ()


class Scatter(_Collective, frozen=True, tag="scatter", kw_only=True):
    """The i-th member's `block` becomes the root's `blocks[i]`; others list no blocks."""

    block: Block
    root: Rank
    blocks: tuple[Block, ...] = ()


Collective = (
    AllReduce | Reduce | Broadcast | AllGather | ReduceScatter | AllToAll | Barrier
    | Gather | Scatter
)  # fmt: skip


# Computes, messages, and what moves blocks within a rank


class Compute(Node, frozen=True, tag="compute"):
    """Add a product of the reads, times `scale`, to a block that starts at zero if not there."""

    reads: Blocks
    accumulates: Block
    phase: Name | None = None
    sub_operator: dict[Name, Rank] | None = None
    scale: Coefficient = "1"
    again: bool = False

    def __post_init__(self) -> None:
        if (self.phase is None) != (self.sub_operator is None):
            raise ValueError("expected phase and sub_operator together, or neither for an addition")
        if self.again and self.phase is None:
            raise ValueError("expected no addition to be computed again: leave again out")
        check_scale(self.scale, "sum")

    @property
    def scale_value(self) -> Scale:
        """The coefficient of what is added."""
        return coefficient(self.scale)


class _Message(CountedTransfer, frozen=True):
    peer: Rank
    block: Block
    tag: Natural = 0
    communicator: Name = "world"


class Send(_Message, frozen=True, tag="send"):
    """Send and return when the receiver has it."""


class Recv(_Message, frozen=True, tag="recv"):
    """Receive and return when it is here."""


class ISend(_Message, frozen=True, tag="isend", kw_only=True):
    """Post a send; the block must stay as it is until its wait."""

    request: Name


class IRecv(_Message, frozen=True, tag="irecv", kw_only=True):
    """Post a receive; the block must not be touched until its wait."""

    request: Name


class Wait(Node, frozen=True, tag="wait"):
    """Return when the posted message is done."""

    request: Name


class Group(Node, frozen=True, tag="group"):
    """Start all sends and receives together, return when all are done (ncclGroupStart/End).

    With a request it returns at once, and one wait finishes all of them.
    """

    body: Annotated[tuple[Send | Recv, ...], Meta(min_length=1)]
    request: Name | None = None


class Alloc(Node, frozen=True, tag="alloc"):
    """Make a block of zeros."""

    block: Block


class Free(Node, frozen=True, tag="free"):
    """Give a block's memory back."""

    block: Block


class Fetch(Node, frozen=True, tag="fetch"):
    """Move a block from host to device memory."""

    block: Block


class Evict(Node, frozen=True, tag="evict"):
    """Move a block from device to host memory."""

    block: Block


class Cut(Node, frozen=True, tag="cut"):
    """Make blocks of the parts of a block, which stays; in place they take its memory."""

    block: Block
    blocks: Blocks
    in_place: bool = False


class Join(Node, frozen=True, tag="join"):
    """Make a block of its parts, which stay; in place it takes their memory."""

    blocks: Blocks
    block: Block
    in_place: bool = False


Message = Send | Recv | ISend | IRecv
Instruction = (
    Compute | Message | Wait | Group | Collective | Alloc | Free | Fetch | Evict | Cut | Join
)  # fmt: skip
LOCAL = frozenset({Wait, Alloc, Free, Fetch, Evict, Cut, Join})
"""Instructions that name neither ranks nor a sub-operator."""
_MESSAGES = frozenset({Send, Recv, ISend, IRecv, Group})


def messages_of(instruction: Instruction) -> tuple[Message, ...]:
    """The messages that an instruction posts."""
    if isinstance(instruction, Group):
        return instruction.body
    return (instruction,) if isinstance(instruction, Message) else ()


def named_ranks(instruction: Instruction) -> tuple[int, ...]:
    """Ranks that an instruction names: a peer, or the members of a collective."""
    if type(instruction) in _MESSAGES:
        return tuple(message.peer for message in messages_of(instruction))
    return tuple(getattr(instruction, "group", ()))


MOST_SUB_OPERATORS = 1_000_000
"""Of one phase; a grid beyond is a mistake, and not worth enumerating."""
BLOCK_LISTS = ("initial", "final", "host_initial", "host_final")
"""Fields with a list of blocks for each rank."""


class Program(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Instruction lists of all ranks, with what is asked of them."""

    format: Literal["primepar-program"]
    version: Literal[1]
    ranks: Count
    programs: tuple[tuple[Instruction, ...], ...]
    grid: dict[Name, dict[Name, Count]] | None = None
    shape: dict[Dim, Count] | None = None
    initial: tuple[tuple[Block, ...], ...] | None = None
    final: tuple[tuple[Block, ...], ...] | None = None
    phases: dict[Name, Signature] | None = None
    tensors: dict[Name, Tensor] | None = None
    memory: Bound | None = None
    traffic: tuple[Elements, ...] | None = None
    host_initial: tuple[tuple[Block, ...], ...] | None = None
    host_final: tuple[tuple[Block, ...], ...] | None = None

    def __post_init__(self) -> None:
        self._check_lists()
        self._check_tensors()
        self._check_phases()
        dims = {name: frozenset(slices) for name, slices in (self.grid or {}).items()}
        dims |= {name: signature.dims for name, signature in (self.phases or {}).items()}
        for rank, instructions in enumerate(self.programs):
            done: set[object] = set()
            again = {node.phase for node in instructions if type(node) is Compute and node.again}
            for place, instruction in enumerate(instructions):
                if type(instruction) in LOCAL:
                    continue
                try:
                    if type(instruction) is not Compute:
                        self._check_ranks(instruction, rank)
                        continue
                    if instruction.phase is not None:
                        self._check_sub_operator(instruction, dims)
                        slices = instruction.sub_operator or {}
                        if instruction.phase in again:
                            check_again(instruction.phase, slices, instruction.again, done)
                    if instruction.scale != "1":
                        block, phase = instruction.accumulates, instruction.phase
                        reduction = reduction_into(block, phase, self.phases, self.tensors)
                        check_scale(instruction.scale, reduction)
                except ValueError as error:
                    raise ValueError(f"{error} in programs[{rank}][{place}]") from None

    def _check_lists(self) -> None:
        for field in ("programs", *BLOCK_LISTS, "traffic"):
            value = getattr(self, field)
            if value is not None and len(value) != self.ranks:
                raise ValueError(
                    f"expected {field} to have one list for each of {self.ranks} ranks, "
                    f"got {len(value)}"
                )
        for field in ("initial", "final"):
            if getattr(self, field) is None and getattr(self, f"host_{field}") is not None:
                raise ValueError(f"expected {field} with host_{field}, got none: add {field}")

    def _check_tensors(self) -> None:
        for name, known in (self.tensors or {}).items():
            if known.of is None:
                continue
            whole = (self.tensors or {}).get(known.of)
            if whole is None or whole.of is not None:
                got = "none" if whole is None else f"those of a tensor that is {whole.of}"
                raise ValueError(f"expected cuts of {known.of}, which {name} is, got {got}")
            if known.size != whole.size:
                raise ValueError(
                    f"expected cuts of {name} that end at {list(whole.size)} as those of "
                    f"{known.of} do, got {list(known.size)}: both are one tensor"
                )

    def _check_phases(self) -> None:
        phases, signatures = (*PHASES, *(self.phases or {})), self.phases or {}
        for name, slices in (self.grid or {}).items():
            if prod(slices.values()) > MOST_SUB_OPERATORS:
                raise ValueError(
                    f"expected at most {MOST_SUB_OPERATORS} sub-operators in grid.{name}, "
                    f"got {prod(slices.values())}"
                )
            if name not in phases:
                raise ValueError(
                    f"expected phases out of {', '.join(phases)}, got {name!r} in grid: "
                    "give it a signature in phases"
                )
            if name in signatures:
                signatures[name].check(name, slices)
            elif not set(slices) <= set(DIMS):
                raise ValueError(
                    f"expected dims out of {', '.join(DIMS)}, got {', '.join(slices)} "
                    f"in grid.{name}"
                )
        assert self.linear_grid is not None  # or raises what is wrong
        writers: dict[str, str] = {}
        linear = {name: PRODUCTS[name].writes for name in self.grid or {} if name in PRODUCTS}
        signed = {name: signature.templates[-1].tensor for name, signature in signatures.items()}
        for name, tensor in {**linear, **signed}.items():
            known = (self.tensors or {}).get(tensor)
            other = writers.setdefault(tensor if known is None else known.of or tensor, name)
            if other != name:
                # Whether a sum is whole would depend on which of them is meant.
                raise ValueError(
                    f"expected one phase that writes {tensor}, got {other} and {name}: give each a "
                    "tensor of its own, and a phase that adds them"
                )

    @property
    def linear_grid(self) -> dict[Dim, int]:
        """The slices of each dim that the phases of the linear operator share.

        Raises `ValueError` if two of them cut a dim differently: `I[2,0]` would be a third of I in
        one and a fourth in the other.
        """
        shared: dict[Dim, tuple[str, int]] = {}
        for name, slices in (self.grid or {}).items():
            for dim, count in slices.items() if name not in (self.phases or {}) else ():
                first, expected = shared.setdefault(dim, (name, count))
                if expected != count:
                    raise ValueError(
                        f"expected {expected} slices of {dim} in grid.{name} as in grid.{first}, "
                        f"got {count}: a block must mean the same data in every phase"
                    )
        return {dim: count for dim, (_, count) in shared.items()}

    def _check_ranks(self, instruction: Instruction, rank: int) -> None:
        for named in named_ranks(instruction):
            if named >= self.ranks:
                raise ValueError(f"expected ranks below {self.ranks}, got {named}")
        if isinstance(instruction, Gather | Scatter):
            due = len(instruction.group) if rank == instruction.root else 0
            if len(instruction.blocks) != due:
                raise ValueError(
                    f"expected {due} blocks on rank {rank}, got {len(instruction.blocks)}: "
                    "the root lists one for each rank of the group, and others none"
                )

    def _check_sub_operator(self, node: Compute, dims: dict[str, frozenset[str]]) -> None:
        """`dims` names the dims of every phase; without a grid its first product defines them."""
        phase, slices = str(node.phase), node.sub_operator or {}
        if phase not in dims and phase not in PHASES:
            raise ValueError(
                f"expected phases out of {', '.join((*PHASES, *(self.phases or {})))} with a "
                f"signature each, got {phase!r}"
            )
        if not dims.setdefault(phase, frozenset(slices)) <= slices.keys():
            raise ValueError(
                f"expected a sub_operator with {', '.join(sorted(dims[phase]))}, "
                f"got {', '.join(slices) or 'none'}"
            )


def not_executable(program: Program) -> str | None:
    """Return where a program has what is not executed, and what: `programs[0][3]: a gather`.

    Prover and emulator know every instruction; executor and simulator only those that methods,
    plans and passes make.
    """
    for rank, instructions in enumerate(program.programs):
        for place, node in enumerate(instructions):
            if isinstance(node, Gather | Scatter):
                return f"programs[{rank}][{place}]: a {node.__struct_config__.tag}"
            if isinstance(node, Group) and node.request is not None:
                return f"programs[{rank}][{place}]: a group with a request"
    return None
