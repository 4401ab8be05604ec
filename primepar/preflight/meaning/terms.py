"""Terms: how one rank computes a tensor from its own data and from what it receives.

Nothing is communicated while a script is captured, so what a rank receives has no value. A term
stands for it. Only data that depends on a message or collective has a term; all other data is
there, and is named by a digest of its content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace


class TermNode(Struct, frozen=True, array_like=True, tag=True):
    """Base of the terms; inputs are numbers of earlier terms of the same rank."""


class Leaf(TermNode, frozen=True):
    """Data that is there: `digest` is of its content, type and size."""

    digest: str
    length: int
    constant: bool = False
    """Whether all elements are equal, as in a bias of zeros or a norm's weight of ones."""


class Received(TermNode, frozen=True):
    """The `slot`-th tensor of `length` elements that a communication call writes."""

    call: int
    slot: int
    length: int
    arrived: bool = False
    """Whether its values were there when it was read."""


class Applied(TermNode, frozen=True):
    """What an operation makes of its inputs; `digest` is of its name and other arguments."""

    digest: str
    inputs: tuple[int, ...]
    length: int
    pointwise: bool = False
    """Whether each element is made of the same elements of inputs of its length."""
    addends: tuple[int, ...] = ()
    """Inputs that it adds to what it makes of the others, as a layer its bias to a product."""


MOVES = "moves elements along "
"""Begins the name of a linear operation that is its own inverse, as to turn rows round."""


class Mapped(TermNode, frozen=True):
    """A linear operation of one input, such as a transposition or a change of type."""

    digest: str
    input: int
    length: int


class Scaled(TermNode, frozen=True):
    """The input times an exact factor, `"1/8"`."""

    input: int
    factor: str


class WeightedTerm(TermNode, frozen=True):
    """The input times, or divided by, a term of one element, such as a clipped norm."""

    input: int
    weight: int
    divides: bool


class Added(TermNode, frozen=True):
    """The sum of inputs of one length."""

    inputs: tuple[int, ...]


class Joined(TermNode, frozen=True):
    """Parts of other terms one after the other: (term, first element, number of elements)."""

    parts: tuple[tuple[int, int, int], ...]


class Gradient(TermNode, frozen=True):
    """A gradient as it is added to that of a parameter, before any reduction over ranks."""

    input: int
    length: int
    parameter: str = ""
    """The name of the parameter, where it is known by then."""


class Cotangent(TermNode, frozen=True):
    """The gradient that a backward pass computes with respect to the term `of`, a received copy."""

    of: int
    input: int
    length: int
    source: str
    """Where `backward` is called, `train.py:42`."""


Term = (
    Leaf
    | Received
    | Applied
    | Mapped
    | Scaled
    | WeightedTerm
    | Added
    | Joined
    | Gradient
    | Cotangent
)


def inputs_of(term: Term) -> Sequence[int]:
    """The terms of the same rank that a term is directly made of; none where it is received."""
    match term:
        case Applied(inputs=inputs) | Added(inputs=inputs):
            return inputs
        case WeightedTerm(input=number, weight=other) | Cotangent(of=number, input=other):
            return (number, other)
        case Mapped(input=number) | Scaled(input=number) | Gradient(input=number):
            return (number,)
        case Joined(parts=parts):
            return [number for number, _, _ in parts]
    return ()


def without_inputs(term: Term) -> Term:
    """A term without the numbers of its inputs: what it makes of any such inputs."""
    match term:
        case Applied():
            return replace(term, inputs=(), addends=())
        case Added():
            return Added(())
        case Joined(parts=parts):
            return Joined(tuple((0, first, count) for _, first, count in parts))
        case WeightedTerm():
            return replace(term, input=0, weight=0)
        case Cotangent():
            return replace(term, of=0, input=0)
        case Mapped() | Scaled() | Gradient():
            return replace(term, input=0)
    return term


class CapturedCall(Struct, frozen=True, array_like=True):
    """One communication call of a rank, and the terms that it reads."""

    instruction: int
    """Its index in the program of the rank."""
    reads: tuple[int, ...]
    forward: Literal["function", "open", ""] = ""
    """`function`: a function of autograd makes it in its forward pass. `open`: it is made outside
    of functions and of backward passes, and not by DTensor."""


class Pullback(Struct, frozen=True, array_like=True):
    """A gradient that enters `backward` for a tensor."""

    data: int
    """The term of the tensor."""
    gradient: int
    source: str


class CopiedInput(Struct, frozen=True, array_like=True):
    """An input of a function of autograd that communicates in its backward pass alone."""

    data: int
    """The term of the input."""
    gradient: int
    """The term of the gradient that the function returns for it."""
    outputs: tuple[int, ...]
    """The terms of what it returns, which no other tensor has."""
    name: str
    source: str
    """Where `backward` is called, `train.py:42`."""


class GradientClaim(Struct, frozen=True, array_like=True):
    """A parameter and its gradient as an optimizer of one rank reads them."""

    name: str
    step: int
    parameter: int
    """The term of its data."""
    gradient: int
    source: str
    """Where the optimizer's step is called, `train.py:42`."""


class TrainedParameter(Struct, frozen=True, array_like=True):
    """A parameter that got gradients: what it held before the first one, and holds at the end."""

    name: str
    start: int
    end: int
    replicated: tuple[tuple[int, ...], ...] = ()
    """The groups of a DTensor's mesh over which its placement states that it is one value."""
    sharded: tuple[tuple[int, ...], ...] = ()
    """The groups of a DTensor's mesh whose ranks hold other parts of it."""
    held: tuple[int, ...] = ()
    """What it held at later backward passes."""
    updated: int | None = None
    """What it held right after the last step of an optimizer."""
    looked_up: bool = False
    """Whether rows of it are taken, as an embedding does."""
    gradient: int | None = None
    """Its gradient when an optimizer last took a step, or later."""


class ReplicaClaim(Struct, frozen=True, array_like=True):
    """A tensor that a script labels as replicated over a group of ranks."""

    group: tuple[int, ...]
    term: int
    source: str
    """Where it is labelled, `model.py:12`."""


class RankTerms(Struct, frozen=True, array_like=True):
    """What the recorder of one rank returns."""

    nodes: tuple[Term, ...]
    calls: tuple[CapturedCall, ...]
    claims: tuple[GradientClaim, ...]
    replicas: tuple[ReplicaClaim, ...] = ()
    trained: tuple[TrainedParameter, ...] = ()
    cotangents: tuple[int, ...] = ()
    """Terms of gradients of copies, one for each time that one was computed."""
    pullbacks: tuple[Pullback, ...] = ()
    traces: tuple[bytes, ...] = ()
    """What functions of autograd that communicate did, packed."""
    entered: tuple[int, ...] = ()
    """Inputs of functions of autograd that communicate in their backward pass."""
    copied: tuple[CopiedInput, ...] = ()
    roots: tuple[int, ...] = ()
    """What `backward` is called for, each time."""
    idle: str = ""
    """The first step of an optimizer that found no gradient, though a backward pass had run."""
    backward: tuple[tuple[int, int], ...] = ()
    """The terms that each backward pass made: from a number on, until another one."""
