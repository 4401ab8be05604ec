"""Functions of autograd that communicate: their gradients are computed once more.

No rule decides whether the backward pass of ring attention is right. So the operations of its
forward pass are done again in one process, with random numbers in the place of its inputs and with
the recorded calls between the ranks: one program, of which `torch.autograd` has the gradients. Then
the recorded operations of its backward pass are done, from random gradients of its outputs. Both
have to return the same:

    rank 0: y0 = f(x0, received x1); dx0 = b(dy0, received dy1)
    rank 1: y1 = f(x1, received x0); dx1 = b(dy1, received dy0)
    dx0, dx1 == torch.autograd.grad([y0, y1], [x0, x1], [dy0, dy1])

The applications that meet in a call are one program: of a gather those on all of its ranks, of a
pipeline's function the one that sends and the other one that receives.

Equal data on several ranks get equal numbers. Where inputs or outputs are replicas, as in tensor
parallelism, the gradient of one counts once, or is the sum of all: each of these is accepted. All
is done in float64, and gradients differ where more than `TOLERANCE` of their size does.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from primepar.preflight.meaning.evaluate import TermValues, ValueAlgebra
from primepar.preflight.meaning.terms import RankTerms, Received
from primepar.preflight.meaning.traces import FunctionTrace, TracedCall, TracedTensor
from primepar.preflight.meaning.values import digest, digest_of

TOLERANCE = 1e-6


class NotDoneError(ValueError):
    """A function that cannot be done again."""


def _extreme(name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """The maximum or minimum of all ranks, as a loss over a vocabulary in parts takes."""
    if name not in ("max", "min"):
        raise NotDoneError(f"it calls a {name}")
    stacked = torch.stack(list(values))
    return stacked.amax(0) if name == "max" else stacked.amin(0)


_ROUNDING = ("round", "floor", "ceil", "trunc", "sign", "argmax")
"""Operations with the gradient zero, which a function means otherwise."""
_TENSORS: ValueAlgebra[torch.Tensor] = ValueAlgebra(
    joined=lambda values: torch.cat(list(values)),
    part=lambda value, start, end: value[start:end],
    total=lambda values: torch.stack(list(values)).sum(0),
    scaled=lambda value, factor: value * float(factor),
    size=len,
    opaque=lambda name, values, length: _extreme(name, values),
)


class ReplayedGradient(NamedTuple):
    """A gradient that a function returns on a rank, and how far it is from that of autograd."""

    rank: int
    trace: FunctionTrace
    difference: float
    """As a share of its size."""


class Replays(NamedTuple):
    """What was compared, and why other functions were not."""

    compared: dict[str, int]
    """Function -> gradients."""
    wrong: list[ReplayedGradient]
    left: dict[str, str]
    """Function -> why some application of it was not done again."""


def replays(values: TermValues, terms: Sequence[RankTerms]) -> Replays:
    """Do the functions of all ranks again, those together that meet in a call."""
    done = Replays({}, [], {})
    ranks = [
        _Rank(rank, pickle.loads(trace), values)
        for rank, of_rank in enumerate(terms)
        for trace in of_rank.traces
    ]
    for together in _meeting(ranks):
        why = next((rank.trace.why for rank in together if rank.trace.why), "")
        try:
            if why:
                raise NotDoneError(why)
            gradients = _compared(values, together)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            text = " ".join(str(error).split())[:200]
            done.left.update({rank.trace.name: text for rank in together})
            continue
        for one in gradients:
            done.compared[one.trace.name] = done.compared.get(one.trace.name, 0) + 1
        done.wrong.extend(one for one in gradients if one.difference > TOLERANCE)
    return done


def _meeting(ranks: Sequence[_Rank]) -> list[list[_Rank]]:
    """The applications of all ranks, grouped by the calls in which they meet."""
    from scipy.cluster.hierarchy import DisjointSet  # a second to import, for few scripts

    makers = {(rank.rank, rank.instruction(call)): place
              for place, rank in enumerate(ranks) for call in rank.trace.calls}  # fmt: skip
    union = DisjointSet(range(len(ranks)))
    for place, rank in enumerate(ranks):
        for call in rank.trace.calls:
            for slot, tensor in enumerate(call.writes):
                received = Received(call.call, slot, tensor.span)
                for member, index, _ in rank.values.reads(rank.rank, received):
                    union.merge(place, makers.get((member, index), place))
    return [[ranks[place] for place in sorted(group)] for group in union.subsets()]


class _Rank:
    """One application on a rank, with the storages that its operations read and write."""

    def __init__(self, rank: int, trace: FunctionTrace, values: TermValues) -> None:
        self.rank, self.trace, self.values = rank, trace, values
        self.storages = {number: _wide(held) for number, held in trace.contents.items()}
        self.pending: dict[int, list[tuple[TracedTensor, Received]]] = defaultdict(list)
        """Storage -> what it receives."""

    def instruction(self, call: TracedCall) -> int:
        """The place of a call in the program of its rank."""
        return self.values.calls[self.rank][call.call].instruction

    def read(self, tensor: TracedTensor) -> torch.Tensor:
        """A tensor of a storage."""
        held = self.storages[tensor.storage]
        return torch.as_strided(held, tensor.size, tensor.stride, tensor.offset)

    def write(self, tensor: TracedTensor, data: torch.Tensor) -> None:
        """Let a part of a storage hold data from now on."""
        held = self.storages.get(tensor.storage)
        if held is None:
            held = data.new_zeros(self.trace.lengths[tensor.storage])
        places = torch.arange(len(held)).as_strided(tensor.size, tensor.stride, tensor.offset)
        self.storages[tensor.storage] = torch.index_put(
            held, (places.reshape(-1),), data.to(held.dtype).reshape(-1)
        )

    def flat(self, tensor: TracedTensor) -> TracedTensor:
        """All elements between the first and the last one."""
        return tensor._replace(size=(tensor.span,), stride=(1,))

    def runs(self, listed: Sequence[Any], given: dict[tuple[int, int], Any]) -> Iterator[bool]:
        """Do operations; yields whether it went on, while it waits for what others give."""
        for event in listed:
            needed: list[TracedTensor] = []
            parts = (event.reads, ()) if isinstance(event, TracedCall) else event[1:3]
            tree_map(
                lambda one, needed=needed: needed.append(one), parts,
                is_leaf=lambda one: isinstance(one, TracedTensor),
            )  # fmt: skip
            storages = {one.storage for one in needed if isinstance(one, TracedTensor)}
            yield from self._arrive(storages, given)
            if isinstance(event, TracedCall):
                self._call(event, given)
            else:
                self._operation(event)
            yield True
        yield from self._arrive(set(self.pending), given)

    def _arrive(self, storages: set[int], given: dict[tuple[int, int], Any]) -> Iterator[bool]:
        for storage in storages & self.pending.keys():
            for tensor, received in self.pending.pop(storage):
                places = self.values.reads(self.rank, received)
                while not all((member, index) in given for member, index, _ in places):
                    yield False
                inputs = [given[member, index][slot] for member, index, slot in places]
                data = self.values.delivered(self.rank, received, inputs, _TENSORS)
                self.write(self.flat(tensor), data)

    def _call(self, event: TracedCall, given: dict[tuple[int, int], Any]) -> None:
        given[self.rank, self.instruction(event)] = [
            self.read(self.flat(one)) for one in event.reads
        ]
        for slot, tensor in enumerate(event.writes):
            received = Received(event.call, slot, tensor.span)
            self.pending[tensor.storage].append((tensor, received))

    def _operation(self, event: Any) -> None:
        namespace, _, name = event.name.partition("::")
        packet, _, overload = name.partition(".")
        if any(packet.rstrip("_") == one for one in _ROUNDING):
            raise NotDoneError(f"{event.name} has the gradient zero")
        func = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        given: dict[int, tuple[TracedTensor, torch.Tensor]] = {}

        def value(one: Any) -> Any:
            if isinstance(one, TracedTensor):
                tensor = self.read(one)
                tensor = tensor.clone() if event.outputs is None else tensor
                given[id(tensor)] = one, tensor
                return tensor
            if isinstance(one, torch.dtype) and one.is_floating_point:
                return torch.float64
            return torch.device("cpu") if isinstance(one, torch.device) else one

        args, kwargs = tree_map(
            value, (event.args, event.kwargs), is_leaf=lambda one: isinstance(one, TracedTensor)
        )
        result = func(*args, **kwargs)
        if event.outputs is None:
            for place, argument in enumerate(func._schema.arguments):
                written = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in written if isinstance(written, list | tuple) else [written]:
                    if argument.is_write and isinstance(tensor, torch.Tensor):
                        self.write(given[id(tensor)][0], tensor)
            return
        results = result if isinstance(result, list | tuple) else [result]
        tensors = [one for one in results if isinstance(one, torch.Tensor)]
        for traced, tensor in zip(event.outputs, tensors, strict=True):
            self.write(traced, tensor)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _drawn(name: str, length: int) -> torch.Tensor:
    """Random numbers, equal for equal names."""
    generator = torch.Generator().manual_seed(int(name[:15], 16))
    return torch.randn(length, generator=generator, dtype=torch.float64)


def _together(ranks: Sequence[_Rank], backward: bool) -> None:
    """Do what all ranks do in a pass. Raises `NotDoneError` where they wait for others."""
    given: dict[tuple[int, int], Any] = {}
    traces = [rank.trace.backward if backward else rank.trace.forward for rank in ranks]
    left = [rank.runs(listed, given) for rank, listed in zip(ranks, traces, strict=True)]
    while left:
        went_on, still = False, []
        for one in left:
            step = next(one, None)
            went_on |= step is not False
            still += [one] if step is not None else []
        if not went_on:
            raise NotDoneError("it communicates with others than this function")
        left = still


def _compared(values: TermValues, ranks: Sequence[_Rank]) -> list[ReplayedGradient]:
    """How far all gradients that applications return are from those of autograd."""
    inputs: list[tuple[_Rank, TracedTensor, str, torch.Tensor]] = []
    outputs: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    """A name that outputs with equal data and gradients share, the output, and its gradient."""
    with torch.enable_grad():
        for rank in ranks:
            for tensor, term in rank.trace.inputs:
                name = digest(values.of(rank.rank, term))
                leaf = _drawn(name, tensor.span).requires_grad_()
                rank.storages.setdefault(
                    tensor.storage,
                    torch.zeros(rank.trace.lengths[tensor.storage], dtype=torch.float64),
                )
                # Its elements alone: between them may be those of other inputs, as in one QKV.
                rank.write(tensor, torch.as_strided(leaf, tensor.size, tensor.stride, 0))
                inputs.append((rank, tensor, name, leaf))
        _together(ranks, backward=False)
        for rank in ranks:
            pairs = zip(rank.trace.outputs, rank.trace.cotangents, strict=False)
            for output, cotangent in pairs:
                if cotangent is not None:
                    both = [values.of(rank.rank, one.term) for one in (output, cotangent)]
                    name = digest_of(*map(digest, both))
                    numbers = _drawn(name, cotangent.tensor.span)
                    made = rank.read(output.tensor)
                    flat = cotangent.tensor._replace(offset=0)
                    entered = torch.as_strided(numbers, flat.size, flat.stride, 0)
                    outputs.append((name, made, entered))
                    rank.storages[cotangent.tensor.storage] = torch.zeros(
                        rank.trace.lengths[cotangent.tensor.storage], dtype=torch.float64
                    )
                    rank.write(rank.flat(cotangent.tensor), numbers)
    with torch.no_grad():
        _together(ranks, backward=True)
    returned = [
        None if gradient is None else rank.read(gradient)
        for rank in ranks
        for gradient in rank.trace.gradients
    ]
    conventions = [
        [
            ReplayedGradient(rank.rank, rank.trace, _differs(got, expected))
            for (rank, _, _, _), got, expected in zip(inputs, returned, right, strict=True)
            if got is not None
        ]
        for once, summed in product((True, False), repeat=2)
        for right in [_of_autograd(inputs, outputs, once, summed)]
    ]
    return min(conventions, key=lambda listed: sum(one.difference > TOLERANCE for one in listed))


def _of_autograd(
    inputs: Sequence[tuple[_Rank, TracedTensor, str, torch.Tensor]],
    outputs: Sequence[tuple[str, torch.Tensor, torch.Tensor]],
    once: bool,
    summed: bool,
) -> list[torch.Tensor]:
    """The gradients of inputs; of replicas of outputs `once`, over those of inputs `summed`."""
    first = {name: place for place, (name, _, _) in reversed(list(enumerate(outputs)))}
    some = [
        one
        for place, one in enumerate(outputs)
        if one[1].requires_grad and (not once or first[one[0]] == place)
    ]
    leaves = [leaf for _, _, _, leaf in inputs]
    made = torch.autograd.grad(
        [one[1] for one in some], leaves, [one[2] for one in some],
        retain_graph=True, allow_unused=True,
    )  # fmt: skip
    flat = [
        torch.zeros_like(leaf) if one is None else one
        for one, leaf in zip(made, leaves, strict=True)
    ]
    if summed:
        sums: dict[str, torch.Tensor] = {}
        for (_, _, name, _), one in zip(inputs, flat, strict=True):
            sums[name] = sums[name] + one if name in sums else one
        flat = [sums[name] for _, _, name, _ in inputs]
    return [
        torch.as_strided(one, tensor.size, tensor.stride, 0)
        for (_, tensor, _, _), one in zip(inputs, flat, strict=True)
    ]


def _differs(got: torch.Tensor, expected: torch.Tensor) -> float:
    """How far a gradient is from another one, as a share of their size."""
    if got.shape != expected.shape:
        return 1.0
    size = max(float(got.norm()), float(expected.norm()))
    return float((got - expected).norm()) / size if size else 0.0
