"""Sees every tensor operation of a rank: what its result is made of, and what it must not touch.

A value that another rank computed is not there, as ranks run apart. Tensors that depend on it are
marked. Where the script turns such a tensor into a number of Python's, or into a shape, its further
way may be another one than in a real run: that is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from primepar.preflight.capture.buffers import content_number, storage_id
from primepar.preflight.capture.pretended_gpu import PretendedGpus
from primepar.preflight.capture.recorder import RankRecorder, ValueQuestion
from primepar.preflight.capture.source_lines import source_line
from primepar.preflight.capture.uncomputed import creates_large, draw, is_large, shaped
from primepar.preflight.meaning.storages import NUMPY

COMMUNICATES = {"_c10d_functional", "_c10d_functional_autograd", "c10d"}
"""Namespaces of functional collectives."""
_PLAIN: set[type] = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
Lane = tuple[Sequence[Any], dict[str, Any]]
"""The arguments of one operation, or of one place of an operation on lists of tensors."""
_SHAPES_ONLY = frozenset(
    f"aten::{name}"
    for name in (
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
        "randint_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    )
)  # fmt: skip
"""Operations that take the shape of a tensor and not its values."""
_OVERWRITES = frozenset({"aten::copy_", "aten::zero_", "aten::fill_", "aten::uniform_",
                         "aten::normal_"})  # fmt: skip


_ALL_REDUCE = torch.ops._c10d_functional.all_reduce.default
_ALL_REDUCE_HERE = torch.ops._c10d_functional.all_reduce_.default
"""Without a copy of the numbers."""
_COMPARES = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
"""Comparison -> the one with its sides exchanged."""
_ASKS = frozenset({*_COMPARES, "isnan", "isfinite", "isinf", "any", "all"})
_USUALLY = frozenset({"aten::all", "aten::isfinite", "aten::isclose", "aten::allclose",
                      "aten::equal"})  # fmt: skip
"""Operations whose result is true as a rule."""


class _Kind(NamedTuple):
    """What an operator does with its arguments."""

    views: bool
    writes: tuple[str, ...]
    """Names of the arguments that it changes."""
    names: tuple[str, ...]
    shapes_only: bool
    allocates: bool
    """Whether it returns memory as it is, which is filled so that ranks and runs are alike."""
    overwrites: bool
    communicates: bool
    steers: bool
    """Whether it returns a number of Python's, or a shape that depends on values."""
    asks: bool
    """Whether it makes truth values, which a script reads soon."""
    lanes: bool
    """Whether it works on lists of tensors, place by place."""
    gathers: bool
    """Whether it is FSDP's copy of all parts that a rank sends into one buffer."""
    splits: bool
    """Whether it is FSDP's copy of what was gathered into the parameters."""
    random: bool
    kernel: bool
    """Whether it stands for a kernel of a GPU, whose numbers are not computed."""


@cache
def _kind(operator: Any) -> _Kind:
    schema = operator._schema
    name = schema.name
    written = tuple(
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    steering = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return _Kind(
        views=operator.is_view or name in ("aten::detach", "aten::alias", "aten::_unsafe_view"),
        writes=written,
        names=tuple(argument.name for argument in schema.arguments),
        shapes_only=name in _SHAPES_ONLY,
        allocates="empty" in name,
        overwrites=name in _OVERWRITES,
        communicates=operator.namespace in COMMUNICATES,
        steers=bool(steering & set(operator.tags)),
        asks=name.partition("::")[2] in _ASKS,
        lanes=name.startswith("aten::_foreach"),
        gathers=name == "fsdp::all_gather_copy_in",
        splits=name == "fsdp::split_with_sizes_copy",
        random=torch.Tag.nondeterministic_seeded in operator.tags,
        kernel=operator.namespace == "preflight",
    )


class WatchedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operation as it is, below autograd and DTensor, and notes what it makes of what.

    That is what its outputs depend on (the table of buffers), and their terms.
    """

    def __init__(self, recorder: RankRecorder, gpus: PretendedGpus | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder, self._gpus = recorder, gpus
        self._table, self._terms = recorder.buffers, recorder.terms

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would import torch._dynamo, two seconds, though nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation on plain tensors; one of wrappers comes again with what they hold."""
        kwargs = kwargs or {}
        if FakeTensor in types:
            return func(*args, **kwargs)
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented
        trace = self._terms.trace
        if trace is None or func.namespace == "c10d":
            return self._run(_kind(func), func, args, kwargs)
        if func.namespace in COMMUNICATES:
            trace.why = "it calls a functional collective"
        done = trace.operation(func, args, kwargs)
        result = self._run(_kind(func), func, args, kwargs)
        done(result)
        return result

    def _run(self, kind: _Kind, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation; with pretended GPUs on the CPU, its result on the GPU of its inputs."""
        gpus = self._gpus
        if kind.gathers:
            with self:
                return self._copied_in(*args)
        if kind.views:
            return func(*args, **kwargs)
        if kind.communicates:
            return self._communicate(func, args, kwargs)
        if gpus is None:
            return self._watch(kind, func, args, kwargs)
        index = gpus.index(kwargs.get("device"))
        if index is not None:
            kwargs = kwargs | {"device": torch.device("cpu")}
        else:
            devices = map(gpus.of, _tensors((*args, *kwargs.values())))
            index = next((device for device in devices if device is not None), None)
        on_gpu = kind.random and (index is not None or gpus.creating)
        if on_gpu and _generator(args, kwargs) is torch.default_generator:
            with gpus.random_numbers():
                result = self._watch(kind, func, args, kwargs)
        else:
            result = self._watch(kind, func, args, kwargs)
        if index is not None and not kind.writes:
            gpus.place(result, index)
        return result

    def _copied_in(
        self, parts: list[torch.Tensor], whole: torch.Tensor, sizes: list[int], length: int,
        rank: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Do FSDP's copy part by part, so that each has its term, also one of data that is there.

        Of layers that are cut by tensor parallelism too, some parts are equal on ranks, some not.
        """
        here = whole.narrow(0, length * rank, length)
        for target, part in zip(torch.split(here, sizes), parts, strict=True):
            target.copy_(part)
            if not target.is_meta:
                self._terms.made(self._terms.held(target), [target])
        return here, whole

    def _communicate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A functional collective: it copies its inputs unseen, and then calls the group."""
        inputs = list(_tensors((*args, *kwargs.values())))
        self._recorder.inherited = self._terms.storages.dependence(inputs)
        if any(map(self._terms.tracked, inputs)):
            self._terms.functional = [self._terms.storages.read(tensor) for tensor in inputs]
        if func is _ALL_REDUCE and self._recorder.shrinks and is_large(inputs):
            func, args = _ALL_REDUCE_HERE, (torch.empty_like(args[0]), *args[1:])
        try:
            return func(*args, **kwargs)
        finally:
            self._recorder.inherited, self._terms.functional = None, []

    def _watch(self, kind: _Kind, func: Any, args: Any, kwargs: Any) -> Any:
        recorder, terms = self._recorder, self._terms
        if recorder.guards:
            recorder.allocate()
        inputs = [] if kind.shapes_only else list(_tensors((*args, *kwargs.values())))
        lanes = list(_lanes(kind, args, kwargs))
        changed = [list(_written(kind, *lane)) for lane in lanes]
        written = [tensor for some in changed for tensor in some]
        if self._table.flights:
            recorder.access(inputs, written)
        if recorder.pending:
            recorder.settle(inputs, kind.steers or kind.asks)
        number = self._number(kind, func, args, kwargs, inputs)
        drawn = number if kind.random else 0
        large = self._is_large(kind, func, args, kwargs)
        tracked = large or any(map(terms.tracked, inputs))
        before = [terms.term(func, *lane, outputs, drawn) if tracked else 0
                  for lane, outputs in zip(lanes, changed, strict=True)]  # fmt: skip
        if large:
            result = self._uncomputed(kind, func, args, kwargs)
            self._derive(inputs, written, result, number)
        elif kind.steers and not recorder.quiet and _may_steer(func, args):
            result = self._steer(func, args, kwargs, inputs, number)
        else:
            result = func(*args, **kwargs)
            if kind.allocates and isinstance(result, torch.Tensor):
                result.zero_()
            self._derive(inputs, written, result, number)
        if not tracked:
            return result
        if written:
            fills = kind.overwrites and not any(map(terms.tracked, inputs[1:])) and not large
            for term, some in zip(before, changed, strict=True):
                terms.made(None if fills else term, some)
            if large:
                terms.without_numbers(written)
            return result
        known = {storage_id(tensor) for tensor in inputs}
        fresh = [one for one in _tensors((result,)) if storage_id(one) not in known]
        of_lanes: list[tuple[Lane, list[torch.Tensor]]] = [((args, kwargs), fresh)]
        if len(fresh) == len(lanes):
            of_lanes = [(lane, [one]) for lane, one in zip(lanes, fresh, strict=True)]
        for (given, named), some in of_lanes:
            terms.made(terms.term(func, given, named, some, drawn), some)
        if large:
            terms.without_numbers(fresh)
        return result

    def _is_large(self, kind: _Kind, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether an operation is not computed, as one of its tensors is large."""
        if not self._recorder.shrinks or kind.steers or kind.kernel:
            return kind.kernel
        tensors = list(_tensors((*args, *kwargs.values())))
        return is_large(tensors) if tensors else creates_large(func, args, kwargs)

    def _uncomputed(self, kind: _Kind, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation returns, without numbers; with them where its shape needs them."""
        recording, trace = self._recorder.recording, self._terms.trace
        if trace is not None:
            trace.why = "it has tensors that are not computed"
        if kind.kernel:
            return func(*args, **kwargs)
        recording.uncomputed = recording.uncomputed or source_line()
        if kind.random:
            draw(_generator(args, kwargs))
        try:
            return shaped(func, args, kwargs)
        except (NotImplementedError, RuntimeError):
            return func(*args, **kwargs)

    def _derive(
        self, inputs: list[torch.Tensor], written: list[torch.Tensor], result: Any, number: int
    ) -> None:
        """Note how outputs were computed, and whether their size depends on a value."""
        length = next(filter(None, map(self._table.length, inputs)), None)
        for place, tensor in enumerate(written or _tensors((result,))):
            self._table.derive(tensor, hash((number, place)) if number else 0)
            if length is not None and not written:
                self._table.sized(tensor, *length)

    def _number(
        self, kind: _Kind, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor]
    ) -> int:
        """How an operation computes, of the rank's own data; 0 where it needs none of them."""
        if kind.random:
            with _disable_current_modes():
                state = content_number(_generator(args, kwargs).get_state())
            return hash((func._schema.name, state))
        whole = kind.overwrites and inputs and _is_all(inputs[0])
        lineages = [self._table.lineage(tensor) for tensor in inputs[bool(whole) :]]
        if not any(lineages):
            return 0
        rest = [value for value in (*args, *kwargs.values())
                if isinstance(value, int | float | str | torch.dtype)]  # fmt: skip
        number = hash((func._schema.name, *lineages, *rest))
        if func._schema.name in _USUALLY:
            self._recorder.usually.add(hash((number, 0)))
            self._recorder.usually.add(number)
        if kind.asks:
            self._note_question(func, args, number)
        return number

    def _note_question(self, func: Any, args: Any, number: int) -> None:
        """Remember which comparison with a constant a tensor of one truth value is."""
        name = func._schema.name.partition("::")[2]
        if name not in _COMPARES or len(args) < 2:
            return
        one, other = args[:2]
        for tensor, constant in ((one, other), (other, one)):
            constants = isinstance(constant, torch.Tensor) and not self._table.lineage(constant)
            if (
                not isinstance(tensor, torch.Tensor)
                or tensor.numel() != 1
                or tensor.is_meta
                or not (isinstance(constant, int | float) or (constants and constant.numel() == 1))
            ):
                continue
            mark = self._recorder.mark(tensor)
            if mark is None:
                continue
            with self._recorder.reading_quietly(), _disable_current_modes():
                numbers = [float(NUMPY(value.detach().reshape(1).to(torch.float64))[0])
                           if isinstance(value, torch.Tensor) else float(value)
                           for value in (tensor, constant)]  # fmt: skip
            asked = name if tensor is one else _COMPARES[name]
            question = ValueQuestion(mark, asked, numbers[1], numbers[0])
            self._recorder.questions[number] = question
            self._recorder.questions[hash((number, 0))] = question
            return

    def _steer(
        self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], number: int
    ) -> Any:
        """An operation by whose result the script goes on: a truth value is a decision."""
        result = func(*args, **kwargs)
        marks = [mark for mark in map(self._recorder.mark, inputs) if mark is not None]
        if isinstance(result, bool) and marks:
            mark = marks[0]
            if len(inputs) > 1:
                mark = self._recorder.mixed(func._schema.name, marks)._replace(lineage=number)
            return self._recorder.decide(mark, result)
        if marks and not list(_tensors((result,))):
            self._recorder.lose()
        if any(mark.unknown for mark in marks):
            how = _doing(func)
            self._recorder.gap(f"{how} a value that other ranks computed, and may do otherwise")
        size = self._recorder.mixed("size", marks) if marks else None
        for place, tensor in enumerate(_tensors((result,))):
            self._table.derive(tensor, hash((number, place)) if number else 0)
            if size is not None and tensor.dim():
                self._table.sized(tensor, len(tensor), size)
        return result


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _lanes(kind: _Kind, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Lane]:
    """The arguments of an operation on lists of tensors, place by place; of others as they are."""
    if kind.splits:
        parts = torch.split(args[0], args[1], 1)
        for part, output in zip(parts, kwargs["out"], strict=True):
            yield [part], {"out": output}
        return
    lists = [value for value in args if isinstance(value, list | tuple)]
    if not kind.lanes or len({len(value) for value in lists}) != 1:
        yield args, kwargs
        return
    for place in range(len(lists[0])):
        yield [value[place] if isinstance(value, list | tuple) else value for value in args], kwargs


def _written(kind: _Kind, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation writes, of those that it is given."""
    named = dict(zip(kind.names, args, strict=False)) | kwargs if kind.writes else {}
    return _tensors(named.get(name) for name in kind.writes)


def _generator(args: Any, kwargs: Any) -> torch.Generator:
    """What an operation draws its random numbers of."""
    generators = (one for one in (*args, *kwargs.values()) if isinstance(one, torch._C.Generator))
    return next(generators, torch.default_generator)


def _is_all(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _may_steer(func: Any, args: Any) -> bool:
    """Indexing has a shape that depends on values only if an index is a mask."""
    if func._schema.name != "aten::index":
        return True
    masks = [index for index in args[1] if index is not None]
    return any(index.dtype in (torch.bool, torch.uint8) for index in masks)


def _doing(func: Any) -> str:
    """How a script reads a value, before `a value that other ranks computed`."""
    name = func._schema.name.removeprefix("aten::")
    if name in ("_local_scalar_dense", "item", "equal", "is_nonzero"):
        return "reads as a number"
    return f"takes the shape of {name} from"
