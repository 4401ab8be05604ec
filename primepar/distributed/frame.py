"""What one run of a program has at hand, and one compiled instruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from primepar.distributed.messages import Pending
from primepar.schedule.program import Instruction


@dataclass
class Frame:
    """Blocks on the device and on the host by name, and messages in flight by request."""

    blocks: dict[str, torch.Tensor]
    host: dict[str, torch.Tensor] = field(default_factory=dict)
    requests: dict[str, Pending] = field(default_factory=dict)

    def put(self, name: str, block: torch.Tensor) -> None:
        """Give a block a place."""
        self.blocks[name] = block


Action = Callable[[Frame], object]


class Step(NamedTuple):
    """One closure, and the instructions that it executes (none: it only makes room for one)."""

    instructions: tuple[Instruction, ...]
    run: Action
