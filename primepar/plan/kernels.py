"""The kernels of a training step: of which kind they are, and what they pass through memory.

Costs, the simulator and `primepar profile` count the same ones, those of the step's program: there
is no formula of them. A kernel takes its launch, and one pass of every block that it names.
Example: `norm1` in bfloat16 is a kernel that reads x and writes x / |x| in float32, 6 bytes for an
element, and one that reads that and writes the output, as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from primepar.errors import ProgramError
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators
from primepar.operators.step import lower_step
from primepar.operators.step_options import StepOptions
from primepar.plan.cluster import BYTES, Cluster, Passing
from primepar.plan.layouts import ends
from primepar.plan.operator_layouts import sequence_lines
from primepar.plan.plan import Plan
from primepar.schedule.meaning import meaning_of
from primepar.schedule.program import Compute, Program


class BlockBytes:
    """Elements and bytes of the blocks of a program in a data type.

    A block of a wide tensor has elements of float32 at least.
    """

    def __init__(self, program: Program, dtype: str) -> None:
        self._item, self._tensors = BYTES[dtype], program.tensors or {}
        self._meaning = meaning_of(program)
        self._elements: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def elements(self, block: str) -> int:
        """Elements of a block. Raises `ProgramError` where the program does not define them."""
        elements = self._elements.get(block)
        if elements is None:
            elements = self._meaning.elements(block)
            if elements is None:
                raise ProgramError(
                    f"expected the elements of {block}, which its time depends on, got none: write "
                    "the shape of the operator, or the cuts of its tensor in tensors"
                )
            self._elements[block] = elements
        return elements

    def item(self, block: str) -> int:
        """Bytes of an element of a block."""
        tensor = self._tensors.get(block.rstrip("'").rpartition("[")[0])
        wide = tensor is not None and tensor.wide
        return max(self._item, BYTES["float32"]) if wide else self._item

    def __call__(self, block: str) -> int:
        """Bytes of a block. Raises what `elements` raises."""
        size = self._bytes.get(block)
        if size is None:
            size = self._bytes[block] = self.elements(block) * self.item(block)
        return size


class Attention(NamedTuple):
    """What the phases of attention compute: `operations` per element that they write."""

    operations: Mapping[str, Fraction] = MappingProxyType({})
    positions: int | None = None
    """Tokens of a sequence, by which a cluster may have rates."""
    head_dim: int = 1

    @property
    def of_score(self) -> int:
        """Operations for each score that passes through memory: those of queries and of values."""
        return 4 * self.head_dim


NO_ATTENTION = Attention()


class Passes(NamedTuple):
    """Kernels, and the bytes that they read and write."""

    starts: int = 0
    bytes: float = 0.0

    def and_of(self, size: float) -> Passes:
        """These and one kernel more."""
        return Passes(self.starts + 1, self.bytes + size)


@dataclass(frozen=True)
class ProgramKernels:
    """Kernels of a step of one sequence of a model of one layer, in one data type.

    `forward` and `backward` are by operator, without its layer. `update` is that of a parameter of
    one element, with the square for the norm of the gradient.
    """

    forward: Mapping[str, Passes]
    backward: Mapping[str, Passes]
    update: Passes


@lru_cache(maxsize=16)
def kernels(model: ModelConfig, positions: int, dtype: str) -> ProgramKernels:
    """The kernels of a step of sequences of this many tokens."""
    one = replace(model, layers=1, context=positions)
    known = operators(one)
    plan = Plan(model=one, ranks=1, sequences={operator.name: "" for operator in known})
    options = step_options(dtype)
    program = lower_step(plan, 1, positions, options=options, passes=("merge-products",))
    size, names = BlockBytes(program, dtype), sorted((known.name for known in known), key=len)
    forward, backward, update = dict[str, Passes](), dict[str, Passes](), Passes()
    for phase, node in _computes(program):
        touched = sum(map(size, (*node.reads, node.accumulates)))
        if _is_update(phase):
            update = update.and_of(touched)
            continue
        name = [name for name in names if phase.startswith(f"{name}.")][-1]
        way = backward if _is_backward(phase.removeprefix(f"{name}.")) else forward
        short = name.rpartition(".")[2] if name.startswith("blocks.") else name
        way[short] = way.get(short, Passes()).and_of(touched)
    starts = round(update.starts / len(one.parameter_shapes))
    return ProgramKernels(forward, backward, Passes(starts, update.bytes / one.parameters))


def step_options(dtype: str) -> StepOptions:
    """How a step in a data type is lowered: a short one has wide sums and wide copies."""
    short = BYTES[dtype] < BYTES["float32"]
    return StepOptions(wide_sums=short, masters=short)


def _computes(program: Program) -> Iterator[tuple[str, Compute]]:
    """Kernels of the first rank that are no plain additions, with their phases."""
    for node in program.programs[0]:
        if isinstance(node, Compute) and node.phase is not None:
            yield node.phase, node


def _is_update(phase: str) -> bool:
    return phase.endswith(".update") or phase.startswith("gradient.")


def _is_backward(phase: str) -> bool:
    return any(word in phase for word in ("backward", "gradient", "fan-in"))


def counts(program: Program, attention: Attention, dtype: str) -> dict[str, float]:
    """What the kernels of the first rank take: launches, operations of attention, bytes, scores."""
    size, total = BlockBytes(program, dtype), dict.fromkeys(
        ("starts", "operations", "bytes", "scores"), 0.0)  # fmt: skip
    for phase, node in _computes(program):
        written = size.elements(node.accumulates)
        operations = float(attention.operations.get(phase, 0) * written)
        total["starts"] += 1
        total["operations"] += operations
        total["bytes"] += sum(map(size, (*node.reads, node.accumulates)))
        total["scores"] += operations / attention.of_score
    return total


def kind_of(phase: str, operators: Iterable[Operator]) -> str:
    """Kind of a phase's operator; `update` for AdamW and for the norm of the gradient before it."""
    if _is_update(phase):
        return "update"
    return max(
        (len(operator.name), operator.kind)
        for operator in operators
        if phase.startswith(f"{operator.name}.")
    )[1]


def phases_passing(plan: Plan, program: Program, cluster: Cluster) -> dict[str, Passing]:
    """Phase of a step -> its launch and bytes per second, for kinds that the cluster has.

    `join` is that of cuts and joins.
    """
    if not cluster.operators:
        return {}
    kinds = {phase: kind_of(phase, plan.operators) for phase in program.phases or {}}
    kinds["join"] = "join"
    return {phase: cluster.operators[kind] for phase, kind in kinds.items()
            if kind in cluster.operators}  # fmt: skip


def attention_of(plan: Plan, batch: int, positions: int, causal: bool) -> Attention:
    """The operations of attention in a step, per element that its phases write.

    Forward has two products, scores and values. Backward has five, one of which recomputes the
    scores. Only a fused kernel skips what the `causal` mask hides.
    """
    model, per_element = plan.model, dict[str, Fraction]()
    product = 2 * Fraction(model.attended(positions, causal))
    for operator in plan.operators:
        if operator.kind != "attention":
            continue
        name, per_input = operator.name, Fraction(operator.K, operator.N)
        parts = len(sequence_lines(ends(plan, name).output, batch)[0])
        per_element[f"{name}.forward"] = Fraction(2 * product)
        if parts == 1:
            per_element[f"{name}.backward"] = 5 * product * per_input
        else:
            # The gradient of the queries alone; the other four products are in backward.keys.
            per_element[f"{name}.backward"] = product * per_input
            keys = 2 * model.kv_heads * model.head_dim * parts
            per_element[f"{name}.backward.keys"] = Fraction(4 * product * operator.K, keys)
    return Attention(per_element, positions, model.head_dim)
