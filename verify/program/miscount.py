"""Sentences about wrong sums: which summand is missing, or which coefficient is wrong, and why.

Example: `O[0,0]` is the sum of two products. If both are added on two ranks and then all-reduced,
each is in it twice. If the all-reduce has scale 1/4, each is in it 1/2 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from primepar.schedule.signature import Scale
from primepar.verify.program.contents import BEFORE, LOOSE, OWN, Sum, Summand, parts_of
from primepar.verify.program.coverage import sub_operator_text
from primepar.verify.program.expected import Expected
from primepar.verify.program.matching import Operation, place
from primepar.verify.program.values import SymbolicRun

OFTEN: Mapping[Scale, str] = {0: "never", 1: "once", 2: "twice"}
MOST_COUNTED = 1_000_000_000
"""Larger counts are not printed: a wrong loop of reductions doubles them without end."""


def content_text(expected: Expected, content: Sum) -> str:
    """The content of a block as text: its summands with their counts."""
    texts = sorted(
        part_text(expected, part) if times == 1 else f"{_times(times)} {part_text(expected, part)}"
        for part, times in parts_of(content).items()
    )
    return " + ".join(texts[:4]) + f" + {len(texts) - 4} more" * (len(texts) > 4) or "zeros"


def _times(count: Scale) -> str:
    return f"{count if count <= MOST_COUNTED else f'more than {MOST_COUNTED}'} times"


def _often(count: Scale) -> str:
    return OFTEN.get(count) or _times(count)


def part_text(expected: Expected, part: Summand) -> str:
    """How messages name a summand: `forward product (M=0, N=1, K=0)`, or its block."""
    name, key = part.source
    block = expected.meaning.block_at(*part.place)
    if part.source in (OWN, LOOSE):
        return block
    if part.source == BEFORE:
        return f"{block} from before"
    phase = expected.meaning.phases[name]
    index = expected.meaning.index_of(phase, part.place.box)
    if index is None:
        slices = ", ".join(map(str, key))
        return f"{name} part {slices or 0} of {block}"
    return f"{name} product {sub_operator_text(phase.sub_operator(index, key))}"


class Miscount:
    """The difference between the content of a block and the finished sum that it requires."""

    def __init__(self, run: SymbolicRun, block: str) -> None:
        self.run, self.expected, self.block = run, run.expected, block
        self.required = parts_of(self.expected.sum(block))

    def of(self, got: Sum, held: str) -> str:
        """A sentence about a coefficient that all products have, else about the first summand."""
        counts = parts_of(got)
        coefficients = self._common(counts)
        if coefficients is not None:
            return self._coefficient(*coefficients, held)
        named = {part: part_text(self.expected, part) for part in {*counts, *self.required}}
        for part in sorted(named, key=named.__getitem__):
            if counts.get(part, 0) != self.required.get(part, 0):
                return self._sentence(part, named[part], counts, held)
        phase = self.expected.meaning.maker(self.block)
        reduction = phase.reduction if phase else "sum"
        text = content_text(self.expected, got)
        return f"expected the {reduction} of its products, got {text}: reduce it by {reduction}"

    def _common(self, counts: Mapping[Summand, Scale]) -> tuple[list[Summand], Scale, Scale] | None:
        """All products of the sum, with the wrong and the right coefficient that they have.

        None if they differ in more than one coefficient, or if a summand is missing or strange.
        """
        sources = (BEFORE, OWN, LOOSE)
        products = sorted(part for part in self.required if part.source not in sources)
        pairs = {(counts.get(part, 0), self.required[part]) for part in products}
        if counts.keys() != self.required.keys() or len(pairs) != 1:
            return None
        ((got, required),) = pairs
        return (products, got, required) if required != got <= MOST_COUNTED else None

    def _coefficient(self, products: list[Summand], got: Scale, required: Scale, held: str) -> str:
        """The sentence where each product is in the sum, all with one wrong coefficient."""
        writer = self._writer(products[0], got, required, held)
        several = len(products) > 1
        name = part_text(self.expected, products[0])
        what, it = (f"each {products[0].source[0]} product", "each") if several else (name, "it")
        cause = likely_cause(Fraction(got), Fraction(required), self._scaled(held))
        return f"expected {what} {_often(required)}, got {it} {_often(got)}: {cause}{writer}"

    def _scaled(self, held: str) -> bool:
        """Whether an instruction that writes the block has a scale."""
        calls = (written.operation.call or written.operation
                 for written in self.run.written if written.block == held)  # fmt: skip
        return any(getattr(call.instruction, "scale", "1") != "1" for call in calls)

    def _writer(self, part: Summand, got: Scale, required: Scale, held: str) -> str:
        """Where the coefficient came to be wrong: without scales, where it first was too large.

        A rank that wrote this coefficient and another one later is not the place.
        """
        wrong: dict[int, Operation] = {}
        for written in self.run.written:
            count = parts_of(written.content.parts).get(part, 0) if written.block == held else 0
            if count == got or (required == 1 and count > 1):
                wrong.setdefault(written.operation.rank, written.operation)
            elif count:
                wrong.pop(written.operation.rank, None)
        return f": see {place(next(iter(wrong.values())))}" if wrong else ""

    def _sentence(
        self, part: Summand, name: str, counts: Mapping[Summand, Scale], held: str
    ) -> str:
        times, required = counts.get(part, 0), self.required.get(part, 0)
        expected = f"expected {name} {_often(required)}, got it {_often(times)}"
        if times == 0:
            for written in self.run.written:
                if written.part == part:
                    return f"{expected}: send it here from {place(written.operation)}"
            return f"{expected}: compute it"
        for written in self.run.written:
            counted = parts_of(written.content.parts).get(part, 0) if written.block == held else 0
            if counted not in (0, required):
                return f"{expected}: fix {place(written.operation)}"
        return f"{expected}: fix what is received under this name"


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
