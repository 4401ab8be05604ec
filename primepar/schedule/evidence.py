"""What is wrong with a program, as data: one class for each way to be wrong.

The judge finds violations, and everybody else reads them: sentences and pictures, SARIF and
annotations, smaller programs and repairs are made from these fields, and nothing reads a sentence.
A place is (rank, instruction); one past the last instruction is the end of the rank. Example: two
ranks that both send first hang in `Cycle(waits=(((0, 0), (1, 1, 0)), ((1, 0), (0, 1, 0))))`: rank 0
hangs in its instruction 0 until rank 1 reaches its instruction 1, and the other way round.

`key` is what stays of a violation without its places. A smaller or changed program is wrong in the
same way if it has a violation with the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

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
    """Two sides that meet and state different things; `claim` is what: `tag`, `root`, `dtype`."""

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
    as its name is. uneven: the parts of a join are not equally far summed.
    """

    place: Place
    why: Literal["operands", "parts", "other data", "uneven"]
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
