"""The redundant memory of a plan beside that of others for the same model: tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from primepar.errors import PlanError
from primepar.plan.plan import Plan
from primepar.plan.ready import ready_plan
from primepar.plan.redundancy.cost import Redundancy
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Found, Planner


@dataclass(frozen=True)
class Account:
    """Redundant memory of a plan, in bytes of each device.

    `redundant` is beyond its share, of which `kept` is kept through a step; the rest is there for a
    while each. `copies` is what all devices hold for each byte of one copy. `memory` is the most
    that is there at once.
    """

    plan: str
    redundant: float
    kept: float
    copies: float
    seconds: float
    memory: float

    @classmethod
    def of(cls, name: str, found: Found) -> Self:
        """The account of a plan."""
        redundancy = Redundancy(found.planner)
        redundant = redundancy.by(found.choices)
        return cls(name, redundant, redundancy.kept_by(found.choices),
                   redundancy.copies(redundant), found.seconds, found.memory)  # fmt: skip


class Every(Planner):
    """A planner that leaves no option out, so that every plan of its space can be told."""

    def options(self, name: str) -> Options:
        """All options of an operator."""
        return self.catalogue.options(self.named[name])

    def find(self, plan: Plan) -> Found | None:
        """The options that have a plan's sequences, if it is one of the space."""
        choices = {}
        for name in self.named:
            texts = [each.text for each in self.options(name).candidates]
            if plan.sequences[name] not in texts:
                return None
            choices[name] = texts.index(plan.sequences[name])
        return Found(self, 0.0, choices)


def megatron(planner: Planner) -> Account | None:
    """Megatron's plan, with the degree of data parallelism that has the least redundancy.

    None where none of them suits the model and the batch. The planner is one of a whole model.
    """
    every = Every(planner.model, planner.training, planner.space)
    every.catalogue = planner.catalogue
    known = {name: found for name, plan in _degrees(planner) if (found := every.find(plan))}
    redundancy = Redundancy(every)
    best = min(known, key=lambda name: redundancy.by(known[name].choices), default=None)
    return None if best is None else Account.of(best, known[best])


def _degrees(planner: Planner) -> Iterator[tuple[str, Plan]]:
    devices, batch = planner.training.wires.devices, planner.training.batch
    for bit in range(planner.training.wires.bits + 1):
        name = f"M{1 << bit},megatron" if bit else "megatron"
        if devices == 1 << bit:
            name = "data"
        try:
            yield name, ready_plan(name, planner.model, devices, batch)
        except PlanError:
            continue


def table(accounts: list[Account]) -> str:
    """Accounts as a table."""
    heads = ("plan", "MiB redundant", "of it kept", "copies", "ms a step", "MiB in all")
    rows = [heads, *map(_cells, accounts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join((row[0].ljust(widths[0]),
                   *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))))
        for row in rows
    )  # fmt: skip


def _cells(account: Account) -> tuple[str, ...]:
    sizes = (f"{each / 2**20:,.1f}" for each in (account.redundant, account.kept))
    rest = f"{account.copies:.3f}", f"{1e3 * account.seconds:,.1f}"
    return (account.plan, *sizes, *rest, f"{account.memory / 2**20:,.1f}")
