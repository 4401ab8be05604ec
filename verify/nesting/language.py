"""What the lemmas of the nesting theorem speak of: two members of which nothing else is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import z3

from primepar.verify.answer import check_by
from primepar.verify.primitive.symbol import Term

BOOL, INT = z3.BoolSort(), z3.IntSort()


@dataclass(frozen=True, eq=False)
class Lemma:
    """What holds of a nesting if all that is `given` holds of its members."""

    property: str
    sentence: str
    given: tuple[Term, ...]
    then: Term


@dataclass(frozen=True)
class Member:
    """One of two members; its blocks are those of one tensor, or its sub-operators."""

    name: str

    @cached_property
    def _devices(self) -> Term:
        return z3.DeclareSort(f"device of {self.name}")

    @cached_property
    def _blocks(self) -> Term:
        return z3.DeclareSort(f"block of {self.name}")

    @cached_property
    def steps(self) -> Term:
        """How many steps a phase has."""
        return z3.Int(f"steps of {self.name}")

    def device(self, tag: str = "") -> Term:
        """Any device."""
        return z3.Const(f"device{tag} of {self.name}", self._devices)

    def block(self, tag: str = "") -> Term:
        """Any block."""
        return z3.Const(f"block{tag} of {self.name}", self._blocks)

    def step(self, tag: str = "") -> Term:
        """Any step."""
        return z3.Int(f"t{tag} of {self.name}")

    @cached_property
    def works(self) -> z3.FuncDeclRef:
        """A device has a block in its product at a step, or does that sub-operator."""
        return z3.Function(f"works {self.name}", self._devices, INT, self._blocks, BOOL)

    def has(self, name: str) -> z3.FuncDeclRef:
        """A relation of devices and blocks."""
        return z3.Function(f"{name} {self.name}", self._devices, self._blocks, BOOL)

    @cached_property
    def nearest(self) -> z3.FuncDeclRef:
        """The nearest device that ends a phase with what another one needs for the next."""
        return z3.Function(f"nearest {self.name}", self._devices, self._blocks, self._devices)

    @cached_property
    def source(self) -> z3.FuncDeclRef:
        """The device that sends to another one."""
        return z3.Function(f"source {self.name}", self._devices, self._devices)

    @cached_property
    def target(self) -> z3.FuncDeclRef:
        """The one device that another one sends to."""
        return z3.Function(f"target {self.name}", self._devices, self._devices)


OUTER, INNER = Member("the outer member"), Member("the inner member")
MEMBERS = (OUTER, INNER)


def every(variables: list[Term], given: Term, then: Term) -> Term:
    """Whatever the variables are, the one follows from the other."""
    return z3.ForAll(variables, z3.Implies(given, then))


def why_not_proved(counter: tuple[Term, ...], deadline: float, broken: str) -> str | None:
    """Why nothing is proved by a counterexample that satisfies all of `counter`; None if none can.

    Asked of a solver of its own, which takes quantifiers away before it begins.
    """
    solver = z3.Solver()
    solver.add(*counter)
    found = check_by(solver, deadline)
    if found == z3.unknown:
        return "Z3 did not decide it in the time that it was given"
    return None if found == z3.unsat else broken
