"""The redundant memory of a plan beside that of others for the same model: tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from primepar.errors import PlanError
from primepar.plan.presets import ready_plan
from primepar.plan.redundancy.cost import Redundancy
from primepar.plan.search.given_plan import Given
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult


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
    def of(cls, name: str, found: SearchResult) -> Self:
        """The account of a plan."""
        redundancy = Redundancy(found.planner)
        redundant = redundancy.by(found.choices)
        return cls(name, redundant, redundancy.kept_by(found.choices),
                   redundancy.copies(redundant), found.seconds, found.memory)  # fmt: skip


def megatron(planner: Planner) -> Account | None:
    """Megatron's plan, with the degree of data parallelism that has the least redundancy.

    None where none of them suits the model and the batch. The planner is one of a whole model.
    """
    known = [Account.of(name, found) for name, found in _degrees(planner)]
    return min(known, key=lambda each: each.redundant, default=None)


def _degrees(planner: Planner) -> Iterator[tuple[str, SearchResult]]:
    devices, batch = planner.training.wires.devices, planner.training.batch
    for bit in range(planner.training.wires.bits + 1):
        name = f"M{1 << bit},megatron" if bit else "megatron"
        if devices == 1 << bit:
            name = "data"
        try:
            plan = ready_plan(name, planner.model, devices, batch)
            yield name, Given.beside(planner, plan.sequences).found
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
