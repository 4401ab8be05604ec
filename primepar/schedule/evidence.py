"""What is wrong with a program, as data: one class for each way to be wrong.

The judge finds violations, and everybody else reads them: sentences and pictures, SARIF and
annotations, smaller programs and repairs are made from these fields, and nothing reads a sentence.
A place is (rank, instruction); one past the last instruction is the end of the rank. Example: two
ranks that both send first hang in `Cycle(waits=(((0, 0), (1, 1, 0)), ((1, 0), (0, 1, 0))))`: rank 0
hangs in its instruction 0 until rank 1 reaches its instruction 1, and the other way round.

`key` is what stays of a violation without its places. A smaller or changed program is wrong in the
same way if it has a violation with the same key.

What is wrong with a primitive on a mesh is a map fault, with devices instead of ranks. Example: two
devices a and b that compute the same are `Miscomputed("forward", {"M": 0, "K": 0}, (a, b))`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from msgspec import Struct

from primepar.schedule.signature import Scale

Place = tuple[int, int]
"""(rank, instruction)."""
Side = tuple[int, int, int]
"""(rank, instruction, index in the body of a group or 0): one side of a message or collective."""
SubOperator = dict[str, int]
"""The slice of each dim."""
Access = Literal["read", "written"]
Why = Literal["never there", "freed", "on the host", "not on the host"]
"""Why a block is not there."""


class Term(NamedTuple):
    """One term of a sum, with how often it is in it and how often it has to be."""

    block: str
    """The block whose data it is, or that it is a product of."""
    got: Scale
    required: Scale
    phase: str | None = None
    """None for data from before the program."""
    sub_operator: SubOperator | None = None
    """None where the output of the phase is cut finer, so that this is a part of a product."""
    slices: tuple[int, ...] = ()
    """The slices that are reduced over: which product of its block it is."""
    is_before: bool = False
    """Whether it is what an output of the program held before it started."""
    key: Any = None
    """Identifies the term for the judge."""


class Data(Protocol):
    """What a block holds next to what it has to hold; without any, only the latter."""

    reduction: str
    """By which its name is made of its products: sum, max or min."""

    def terms(self) -> list[Term]:
        """Every term that the block holds or has to hold."""


def first_wrong(terms: list[Term], text: Callable[[Term], str]) -> tuple[Term | None, bool]:
    """Return the term by which a wrong sum is described, and whether it stands for all products.

    It does where each product has one and the same wrong coefficient. Else it is the first term, by
    its text, that is missing, strange or in the sum too often; None if only the reduction is wrong.
    """
    products = sorted((term for term in terms if term.phase is not None and term.required),
                      key=lambda term: (term.phase, term.slices))  # fmt: skip
    pairs = {(term.got, term.required) for term in products}
    if len(pairs) == 1 and all(term.got and term.required for term in terms):
        ((got, required),) = pairs
        if required != got <= MOST_COUNTED:
            return products[0], True
    wrong = [term for term in terms if term.got != term.required]
    return (min(wrong, key=text) if wrong else None), False


MOST_COUNTED = 1_000_000_000
"""Larger counts are not stated: a wrong loop of reductions doubles them without end."""


@dataclass(frozen=True)
class Origin:
    """Where a wrong sum came from: the instruction to fix, or the one that has what is missing."""

    fix: Place | None = None
    sent_from: Place | None = None
    is_scaled: bool = False
    """Whether an instruction that writes the block has a scale."""


@dataclass(frozen=True)
class _Wrong:
    """What is wrong at one place; `of` is the property that it refutes."""

    def key(self) -> Hashable:
        """The kind of violation, without its places."""
        return type(self).__name__


@dataclass(frozen=True)
class Unmatched(_Wrong):
    """A message or a call that nothing matches; `peer` is the rank without the other side."""

    of: ClassVar[str] = "deadlock-freedom"
    side: Side
    peer: int
    is_call: bool = False

    def key(self) -> Hashable:
        return super().key(), self.is_call


@dataclass(frozen=True)
class Outsider(_Wrong):
    """A rank that calls a collective of a group without it."""

    of: ClassVar[str] = "deadlock-freedom"
    side: Side


@dataclass(frozen=True)
class NotPosted(_Wrong):
    """A wait for a request that is not in flight."""

    of: ClassVar[str] = "deadlock-freedom"
    place: Place
    request: str


@dataclass(frozen=True)
class Disagreement(_Wrong):
    """Two sides that meet and state different things; `claim` is what: `tag`, `elements`."""

    of: ClassVar[str] = "deadlock-freedom"
    side: Side
    other: Side
    claim: str
    expected: object
    got: object

    def key(self) -> Hashable:
        return super().key(), self.claim


@dataclass(frozen=True)
class Cycle(_Wrong):
    """Ranks that wait for one another: each hangs at a place until the next reaches another one.

    The last one waits for the first. `in_order` where they wait only because a communicator runs
    its operations in order, or because slots are taken.
    """

    of: ClassVar[str] = "deadlock-freedom"
    waits: tuple[tuple[Place, Side], ...]
    of_calls: bool = False
    """Whether some rank hangs in a collective."""
    in_order: bool = False
    ends_buffered: bool = False
    """Whether the program would end with buffered sends."""


@dataclass(frozen=True)
class Race(_Wrong):
    """An access to a block in flight, between the post of a message and its wait."""

    of: ClassVar[str] = "races"
    place: Place
    block: str
    access: Access
    posted: Side
    request: str | None
    """None where both are messages of one group."""
    is_leaked: bool = False
    """Whether nothing waits for what is in flight."""

    def key(self) -> Hashable:
        return super().key(), self.access, self.request is None, self.is_leaked


@dataclass(frozen=True)
class SharedElements(_Wrong):
    """Two blocks that one collective delivers, and that share elements of a tensor."""

    of: ClassVar[str] = "races"
    place: Place
    block: str
    other: str
    tensor: str


@dataclass(frozen=True)
class Leaked(_Wrong):
    """A request that nothing waits for before it is posted again, or before the end."""

    of: ClassVar[str] = "races"
    place: Place
    request: str


@dataclass(frozen=True)
class Miscovered(_Wrong):
    """A sub-operator that is not computed exactly once, with all places that compute it."""

    of: ClassVar[str] = "coverage"
    phase: str
    sub_operator: SubOperator
    places: tuple[Place, ...]
    is_outside: bool = False
    """Whether the grid has no such sub-operator."""

    def key(self) -> Hashable:
        return super().key(), self.phase, self.is_outside, min(len(self.places), 2)


@dataclass(frozen=True)
class Absent(_Wrong):
    """A block that is used and not there."""

    of: Literal["placement", "alignment"]
    place: Place
    block: str
    why: Why

    def key(self) -> Hashable:
        return super().key(), self.of, self.why


@dataclass(frozen=True)
class Misshapen(_Wrong):
    """Operands or parts that do not fit: `expected` are the blocks that would.

    operands: a product reads another number of blocks. parts: the blocks of a cut or join do not
    fill the whole side by side. other data: a block holds data of another place, which is not cut
    as its name is. uneven: the parts of a join are not equally far summed. sizes: two blocks of a
    sum have other numbers of elements.
    """

    place: Place
    why: Literal["operands", "parts", "other data", "uneven", "sizes"]
    expected: tuple[str, ...]
    of: Literal["placement", "alignment"] = "placement"

    def key(self) -> Hashable:
        return super().key(), self.why


@dataclass(frozen=True)
class WrongRead(_Wrong):
    """A product that reads other data than its operand, or a sum that is not finished."""

    of: Literal["placement", "alignment", "completion"]
    place: Place
    block: str
    want: str
    """The block whose data is needed."""
    phase: str
    sub_operator: SubOperator
    data: Data
    origin: Origin | None = None

    def key(self) -> Hashable:
        return super().key(), self.of, self.phase


@dataclass(frozen=True)
class WrongEnd(_Wrong):
    """A block that is wrong at the end; `rank` is None where no rank holds it.

    `memory` is where `final` or `host_final` lists it. It is None without `final`, where an output
    may end on any rank. `data` is None where it is not there; `holders` are the ranks that have it.
    """

    of: Literal["completion", "alignment"]
    rank: int | None
    block: str
    memory: Literal["device", "host"] | None
    data: Data | None
    holders: tuple[int, ...] = ()
    origin: Origin | None = None

    def key(self) -> Hashable:
        return super().key(), self.of, self.memory, self.data is None


@dataclass(frozen=True)
class Lost(_Wrong):
    """An output of the grid that no rank keeps or reads when it is finished."""

    of: ClassVar[str] = "completion"
    block: str


@dataclass(frozen=True)
class OverMemory(_Wrong):
    """More live elements than allowed; the instruction is -1 before the first one."""

    of: ClassVar[str] = "memory"
    place: Place
    memory: Literal["device", "host"]
    limit: int
    held: dict[str, int]
    """Block -> its elements."""


@dataclass(frozen=True)
class WrongTraffic(_Wrong):
    """A rank that sends another number of elements than stated; `sent` are its contributions."""

    of: ClassVar[str] = "traffic"
    rank: int
    expected: Fraction
    got: Fraction
    sent: tuple[tuple[Fraction, int], ...]
    """(elements, instruction)."""


Violation = (
    Unmatched | Outsider | NotPosted | Disagreement | Cycle | Race | SharedElements | Leaked
    | Miscovered | Absent | Misshapen | WrongRead | WrongEnd | Lost | OverMemory | WrongTraffic
)  # fmt: skip


class InvolvedDevice(Struct, frozen=True, omit_defaults=True):
    """A device of a mesh, and a step."""

    rank: int
    coordinates: dict[str, int]
    """Axis -> place along it."""
    step: int | None = None

    def __str__(self) -> str:
        """Its name in messages, `device 2 (r=1, c=0) at t=1`."""
        place = ", ".join(f"{axis}={value}" for axis, value in self.coordinates.items())
        when = "" if self.step is None else f" at t={self.step}"
        return f"device {self.rank}" + f" ({place})" * bool(place) + when


class MeshSides(NamedTuple):
    """The mesh on which a primitive or a sequence is wrong."""

    sides: dict[str, int]
    """Name -> length."""
    axes: dict[str, int]
    """Axis -> devices along it."""


class Part(NamedTuple):
    """How many there are of how many."""

    number: int
    total: int


@dataclass(frozen=True)
class Miscomputed:
    """A sub-operator that two devices compute, or none."""

    phase: str
    sub_operator: SubOperator
    devices: tuple[InvolvedDevice, ...] = ()
    computed: Part | None = None
    """Sub-operators that are computed, where they were counted."""


@dataclass(frozen=True)
class OtherNumber:
    """A phase with another number of sub-operators than devices times steps."""

    phase: str


@dataclass(frozen=True)
class NoStep:
    """A mesh on which a phase has less than one step."""

    steps: int


@dataclass(frozen=True)
class OutOfRange:
    """A device on which the home of a tensor is out of range, or a divisor is less than 1."""

    device: InvolvedDevice
    tensor: str | None = None


@dataclass(frozen=True)
class Nowhere:
    """A block that a device needs, and that no device has before.

    Without homes it should be on one at the step before, or, of the first step of a phase, at the
    end of the phase `after`.
    """

    phase: str
    device: InvolvedDevice
    block: str
    home: str | None = None
    """The tensor whose home should assign it to a device, if there are homes."""
    after: str | None = None


@dataclass(frozen=True)
class Homeless:
    """A block that no home assigns to a device, or, at the step of a phase, a sum."""

    tensor: str
    block: str
    phase: str | None = None
    device: InvolvedDevice | None = None
    resident: Part | None = None
    """Blocks of the tensor that are resident, where they were counted."""


@dataclass(frozen=True)
class Misaligned:
    """A block that a phase starts with on a device that has others at the end of `after`."""

    phase: str
    device: InvolvedDevice
    block: str
    after: str
    held: tuple[str, ...] = ()
    """What the device has of the tensor, where it is known."""
    may_hop: bool = False
    """Whether it may arrive by one hop."""


@dataclass(frozen=True)
class OverFormula:
    """More live elements on a device than `held` states for an operator of these sizes."""

    sizes: dict[str, int]
    device: InvolvedDevice
    stated: Fraction
    got: int


@dataclass(frozen=True)
class OtherThanFormula:
    """Other elements that leave the devices than `sent` states for an operator of these sizes."""

    sizes: dict[str, int]
    stated: Fraction
    """For each device."""
    got: int | Fraction
    """For all of them."""
    ranks: int


MapFault = (
    Miscomputed | OtherNumber | NoStep | OutOfRange | Nowhere | Homeless | Misaligned | OverFormula
    | OtherThanFormula
)  # fmt: skip


# A counterexample as data to draw: the instructions or devices involved, and their order.
#
# It is made from a violation or a map fault (`primepar.schedule.evidence`). Pictures, SARIF and
# annotations are made from it.

Kind = Literal[
    "waiting-cycle", "no-partner", "mismatch", "no-request", "done-twice", "never-done",
    "outside-the-grid", "absent-block", "wrong-data", "wrong-place", "unfinished-sum",
    "sum-lost", "nowhere", "homeless", "race", "never-awaited", "over-memory", "wrong-traffic",
]  # fmt: skip
Meaning = Literal["waits for", "moves to", "meets", "in flight", "frees", "never reaches"]


class InvolvedInstruction(Struct, frozen=True, omit_defaults=True):
    """An involved instruction; without an index it is before the first or at the end."""

    rank: int
    text: str
    index: int | None = None
    role: str = ""
    """Its part in the counterexample: hangs, never reached, reads, ..."""
    wrong: bool = False
    """Whether the sentence reports the error here."""
    source: str | None = None
    """Where the instruction was written, `train.py:42`."""


class Arrow(Struct, frozen=True):
    """An arrow from one event to another, by their indices in `Counterexample.events`."""

    source: int
    target: int
    means: Meaning


class Plane(Struct, frozen=True):
    """How often each sub-operator near one is computed, over two dims of the grid."""

    rows: str
    columns: str
    first: tuple[int, int]
    """Slice indices of the first row and column that are shown."""
    counts: tuple[tuple[int, ...], ...]


class Counterexample(Struct, frozen=True, omit_defaults=True):
    """What refutes a property: of a program in `events`, of a primitive in `devices`."""

    kind: Kind
    ranks: tuple[int, ...] = ()
    blocks: tuple[str, ...] = ()
    phase: str | None = None
    sub_operator: dict[str, int] | None = None
    plane: Plane | None = None
    events: tuple[InvolvedInstruction, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    sides: dict[str, int] | None = None
    mesh: dict[str, int] | None = None
    """Axis -> its length."""
    places: tuple[tuple[int, ...], ...] = ()
    """Coordinates of all devices of the mesh, by rank; empty if it is too large to be drawn."""
    devices: tuple[InvolvedDevice, ...] = ()


WINDOW = 8
"""Largest number of rows and of columns of a plane."""


def plane_around(
    grid: dict[str, int], cell: dict[str, int], counts: dict[tuple[int, ...], int]
) -> Plane | None:
    """The plane of the last two dims through a cell; `counts` has only the computed cells."""
    dims = tuple(grid)
    if not dims or dims != tuple(cell) or any(cell[dim] >= grid[dim] for dim in dims):
        return None
    rows, columns = (dims[-2], dims[-1]) if len(dims) > 1 else ("", dims[-1])
    high, wide = grid.get(rows, 1), grid[columns]
    top = _first(cell.get(rows, 0), high)
    left = _first(cell[columns], wide)
    fixed = tuple(cell[dim] for dim in dims[:-2])
    return Plane(rows, columns, (top, left), tuple(
        tuple(
            counts.get((*fixed, row, column) if rows else (column,), 0)
            for column in range(left, min(left + WINDOW, wide))
        )
        for row in range(top, min(top + WINDOW, high))
    ))  # fmt: skip


def _first(index: int, slices: int) -> int:
    return max(0, min(index - WINDOW // 2, slices - WINDOW))
