"""Captures a script of torch: one recording for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from primepar.preflight.capture.rank_link import RankLink
from primepar.preflight.capture.runner import run_ranks
from primepar.preflight.recording import RankRecording


def capture_torch(
    script: Path, arguments: Sequence[str], ranks: int, limit: float
) -> list[RankRecording]:
    """Run a script once per rank, without communication, and return what each rank did."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel
    import torch.testing  # noqa: F401

    from primepar.preflight.capture.torch_script import run_script

    def body(rank: int, link: RankLink) -> RankRecording:
        return run_script(script, arguments, rank, ranks, link)

    return run_ranks(ranks, body, limit, script=str(script))
