"""Tables that compare the redundant memory of plans for one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from primepar.plan.redundancy.cost import Redundancy
from primepar.plan.search.megatron import degrees
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult


@dataclass(frozen=True)
class Account:
    """Redundant memory of a plan, in bytes of each device.

    `redundant` is what exceeds its share; `kept` of that is kept through a step, the rest is
    transient. `copies` is what all devices hold for each byte of one copy. `memory` is the peak.
    """

    plan: str
    redundant: float
    kept: float
    copies: float
    seconds: float
    memory: float

    @classmethod
    def of(cls, name: str, result: SearchResult) -> Self:
        """The account of a plan."""
        redundancy = Redundancy(result.planner)
        redundant = redundancy.bytes_of(result.choices)
        return cls(name, redundant, redundancy.kept_bytes_of(result.choices),
                   redundancy.copies(redundant), result.seconds, result.memory)  # fmt: skip


def megatron(planner: Planner) -> Account | None:
    """Megatron's plan, with the degree of data parallelism that has the least redundancy.

    None where no degree fits the model and the batch. The planner must be of a whole model.
    """
    known = [Account.of(name, result) for name, result in degrees(planner)]
    return min(known, key=lambda account: account.redundant, default=None)


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
    sizes = (f"{size / 2**20:,.1f}" for size in (account.redundant, account.kept))
    rest = f"{account.copies:.3f}", f"{1e3 * account.seconds:,.1f}"
    return (account.plan, *sizes, *rest, f"{account.memory / 2**20:,.1f}")
