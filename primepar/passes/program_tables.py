"""The tables of a program while a pass changes them, and names for blocks of coarser cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from msgspec.structs import replace

from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import tensor_dims
from primepar.schedule.program import Instruction, Program
from primepar.schedule.signature import Signature, Template, Tensor


def template_text(tensor: str, template: Template) -> str:
    """A template for another tensor, as signatures write it; no dim of it is divided."""
    return f"{tensor}[{','.join(dim or str(at) for dim, at in template.entries)}]"


class Tables:
    """`tensors`, `phases` and `grid` of a program, to be changed.

    The phases of a linear operator of known shape get the signatures that they have anyway; where
    the shape is not told, nobody knows where a block lies in its tensor, and they get none.
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
            if phase.grid is None or not phase.grid.keys() <= shape.keys():
                continue
            texts = [template_text(each.tensor, each) for each in (*phase.reads, phase.writes)]
            self.phases[name] = Signature(tuple(texts[:-1]), texts[-1], kernel=phase.kernel)
            for template in (*phase.reads, phase.writes):
                dims = [dim for dim in tensor_dims(template.tensor) if dim in phase.grid]
                cuts = tuple(
                    tuple(range(0, shape[dim] + 1, shape[dim] // phase.grid[dim])) for dim in dims
                )
                self.tensors[template.tensor] = Tensor(cuts)

    def program_of(self, lists: list[list[Instruction]]) -> Program:
        """The program with these tables and other instructions."""
        return replace(
            self.program,
            programs=tuple(map(tuple, lists)),
            tensors=self.tensors or None,
            phases=self.phases or None,
            grid=self.grid or None,
        )

    def coarser(self, tensor: str, at: int, factor: int) -> Tensor | None:
        """A tensor in blocks of `factor` slices of one dim; None where nothing tells its cuts."""
        known = self.tensors.get(tensor)
        if known is None:
            return None
        line = known.cuts[at][::factor]
        cuts = (*known.cuts[:at], line, *known.cuts[at + 1 :])
        return Tensor(cuts, known.of or tensor, known.wide)

    def name(self, tensor: str, coarse: Tensor, is_free: Callable[[str], bool]) -> str:
        """What to call a tensor in other cuts: as a name of these cuts that is free, or anew."""
        for name in self._named(tensor, coarse):
            if is_free(name):
                self.tensors.setdefault(name, coarse)
                return name
        raise AssertionError("a new name is free")

    def _named(self, tensor: str, coarse: Tensor) -> Iterator[str]:
        for name, known in self.tensors.items():
            if (known.of or name) == coarse.of and known.cuts == coarse.cuts:
                yield name
        own = tensor.partition(".joined")[0]
        news = (f"{own}.joined{number or ''}" for number in count())
        yield next(name for name in news if name not in self.tensors)
