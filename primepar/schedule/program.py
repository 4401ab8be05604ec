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
from typing import Literal

from msgspec import Struct

from primepar.schedule.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from primepar.schedule.instructions import (
    LOCAL,
    Alloc,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Message,
    Recv,
    Send,
    Wait,
    messages_of,
    named_ranks,
)
from primepar.schedule.node import (
    Block,
    Blocks,
    Count,
    Elements,
    Rank,
    Ranks,
)
from primepar.schedule.operators import DIMS, PHASES, PRODUCTS, Dim
from primepar.schedule.signature import (
    Bound,
    Name,
    Signature,
    Tensor,
    check_again,
    check_scale,
    reduction_into,
)

__all__ = [
    "BLOCK_LISTS",
    "MOST_SUB_OPERATORS",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Alloc",
    "Barrier",
    "Block",
    "Blocks",
    "Broadcast",
    "Collective",
    "Compute",
    "Count",
    "Cut",
    "Elements",
    "Evict",
    "Fetch",
    "Free",
    "Gather",
    "Group",
    "IRecv",
    "ISend",
    "Instruction",
    "Join",
    "Message",
    "Program",
    "Rank",
    "Ranks",
    "Recv",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "Send",
    "Wait",
    "messages_of",
    "named_ranks",
]

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
