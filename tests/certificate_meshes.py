"""What the certificate of a primitive says, looked up on one mesh by plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

from primepar import ANY, Primitive
from primepar.certify.primitive import Move, PrimitiveCertificate, Rule, Sides, Span, moves
from primepar.schedule.operators import PHASES, tensor_dims
from primepar.schedule.primitive import call_home, call_map

Row = tuple[int, ...]


@dataclass
class OneMesh:
    """A primitive on one mesh, and its certificate."""

    primitive: Primitive
    sides: Row
    given: PrimitiveCertificate

    @cached_property
    def lengths(self) -> list[int]:
        """Devices along each axis."""
        length = dict(zip(self.primitive.side_names, self.sides, strict=True))
        return [length[side] for side in self.primitive.axis_sides.values()]

    @cached_property
    def devices(self) -> list[Row]:
        """All devices."""
        return list(product(*map(range, self.lengths)))

    @property
    def steps(self) -> int:
        """Steps of a phase."""
        return int(self.primitive.steps(*self.sides))

    def form(self, of: Sides) -> int:
        """A form of the sides."""
        return of[0] + sum(a * b for a, b in zip(of[1], self.sides, strict=True))

    def told(self, rule: Rule, known: Sequence[int], around: Sequence[int]) -> Row:
        """What a rule says."""
        rows = zip(rule.factors, rule.offset, around, strict=True)
        return tuple(
            (sum(a * b for a, b in zip(row, known, strict=True)) + step) % n
            for row, step, n in rows
        )

    def at(self, spans: Sequence[Span], t: int) -> Rule | None:
        """The rule of a step."""
        return [span for span in spans if self.form(span.first) <= t][-1].rule

    def named(self, phase: str, device: Row, t: int) -> dict[str, Any]:
        """Dim -> digits."""
        return call_map(self.primitive, phase, device, t, self.sides)

    def check(self) -> None:
        """Look up everything."""
        self._witnesses()
        for move in moves() if self.given.moves else []:
            self._move(move)
        for tensor, rule in self.given.homes.items():
            self._home(tensor, rule)

    def _witnesses(self) -> None:
        for phase, device, t in product(PHASES, self.devices, range(self.steps)):
            digits = [at for index in self.named(phase, device, t).values() for at in index]
            witness = self.given.witnesses[phase]
            rule = self.at(witness.device, t)
            assert self.told(witness.step, digits, [self.steps]) == (t,)
            assert rule is not None
            assert self.told(rule, digits, self.lengths) == device

    def _move(self, move: Move) -> None:
        pairs = [(self.steps - 1, 0)] if move.following else list(pairwise(range(self.steps)))
        dims = tensor_dims(move.tensor)
        for (t, then), device in product(pairs, self.devices):
            rule = self.at(self.given.moves[move.name], t)
            need = self.named(move.following or move.phase, device, then)
            sources = {device} if rule is None else {self.told(rule, device, self.lengths)}
            held = [self.named(move.phase, each, t) for each in sources | {device}]
            assert any(all(have.get(dim) in (None, need.get(dim)) for dim in dims) for have in held)

    def _home(self, tensor: str, rule: Rule) -> None:
        counts = [(dim, self.form(count)) for dim in tensor_dims(tensor)
                  for count in self.given.slices.get(dim, ())]  # fmt: skip
        for device, flat in product(self.devices, product(*(range(n) for _, n in counts))):
            found = self.told(rule, (*device, *flat), self.lengths)
            block: dict[str, list[int]] = {}
            for (dim, _), at in zip(counts, flat, strict=True):
                block.setdefault(dim, []).append(at)
            for dim, index in call_home(self.primitive, tensor, found, self.sides).items():
                assert all(a in (ANY, b) for a, b in zip(index, block[dim], strict=False))
