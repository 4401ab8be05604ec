"""The tables of a program, which a pass can change, and names for blocks of coarser cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from msgspec.structs import replace

from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import tensor_dims
from primepar.schedule.program import Instruction, Program
from primepar.schedule.signature import Signature, Template, Tensor


def template_text(tensor: str, template: Template) -> str:
    """Return the text of a template with another tensor; its dims have no divisor."""
    return f"{tensor}[{','.join(dim or str(number) for dim, number in template.entries)}]"


def divides_nothing(signature: Signature) -> bool:
    """Return whether the dims of all templates have no divisor, as those of a product."""
    return all(
        number == 1 for template in signature.templates for dim, number in template.entries if dim
    )


class Tables:
    """Mutable `tensors`, `phases` and `grid` of a program.

    The phases of a linear operator of known shape get explicit signatures. Without a shape the
    place of a block in its tensor is unknown, and they get none.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tensors = dict(program.tensors or {})
        self.phases = dict(program.phases or {})
        self.grid = {phase: dict(slices) for phase, slices in (program.grid or {}).items()}
        if not self.phases and not self.tensors:
            self._sign(program.shape or {})

    def _sign(self, shape: dict[str, int]) -> None:
        for name, phase in Meaning(self.program).phases.items():
            # M of 8 elements in 4 slices is cut at 0 2 4 6 8; without M's size there are no cuts to
            # join.
            if phase.grid is None or not phase.grid.keys() <= shape.keys():
                continue
            templates = (*phase.reads, phase.writes)
            texts = [template_text(template.tensor, template) for template in templates]
            self.phases[name] = Signature(tuple(texts[:-1]), texts[-1], kernel=phase.kernel)
            for template in (*phase.reads, phase.writes):
                dims = [dim for dim in tensor_dims(template.tensor) if dim in phase.grid]
                cuts = tuple(
                    tuple(range(0, shape[dim] + 1, shape[dim] // phase.grid[dim])) for dim in dims
                )
                self.tensors[template.tensor] = Tensor(cuts)

    def program_of(self, lists: list[list[Instruction]]) -> Program:
        """Return the program with these tables and other instructions."""
        return replace(
            self.program,
            programs=tuple(map(tuple, lists)),
            tensors=self.tensors or None,
            phases=self.phases or None,
            grid=self.grid or None,
        )

    def coarser(self, tensor: str, dim: int, factor: int) -> Tensor | None:
        """Return a tensor in blocks of `factor` slices of one dim; None if its cuts are unknown."""
        known = self.tensors.get(tensor)
        if known is None:
            return None
        # Cuts 0 2 4 6 8 by two are 0 4 8: each coarse block is two neighbours.
        line = known.cuts[dim][::factor]
        cuts = (*known.cuts[:dim], line, *known.cuts[dim + 1 :])
        return Tensor(cuts, known.of or tensor, known.wide)

    def name(self, tensor: str, coarse: Tensor, is_free: Callable[[str], bool]) -> str:
        """Return a name for a tensor in other cuts: a free one of these cuts, or a new one."""
        for name in self._named(tensor, coarse):
            if is_free(name):
                self.tensors.setdefault(name, coarse)
                return name
        raise AssertionError("a new name is free")

    def _named(self, tensor: str, coarse: Tensor) -> Iterator[str]:
        for name, known in self.tensors.items():
            if (known.of or name) == coarse.of and known.cuts == coarse.cuts:
                yield name
        base = tensor.partition(".joined")[0]
        news = (f"{base}.joined{number or ''}" for number in count())
        yield next(name for name in news if name not in self.tensors)
