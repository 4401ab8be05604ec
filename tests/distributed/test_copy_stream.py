"""Copies to and from host memory on a stream of their own: what waits for what, in which order.

CUDA is not needed: streams, events and the blocks only record.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from primepar.distributed import Executor, Mesh
from primepar.distributed.runtime.host_memory import CopyStream
from primepar.partition import parse_sequence
from primepar.schedule.program import Alloc, Compute, Evict, Fetch, Free, Instruction, Program
from primepar.schedule.signature import Tensor

PAIR = Tensor(((0, 2),))
TENSORS = dict.fromkeys("abcd", PAIR)


class FakeCopies(CopyStream):
    """Copies at once, and records what would be queued."""

    def __init__(self) -> None:
        self.queued: list[str] = []
        self.names: dict[int, str] = {}

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> Any:
        into.copy_(source)
        self.queued.append(f"copy {int(source[0])}")
        return f"copied {int(source[0])}"

    def wait(self, copied: Any) -> None:
        self.queued.append(f"wait until {copied}")

    def finish(self) -> None:
        self.queued.append("finish")


def queued(*instructions: Instruction, host: str = "", final: str = "") -> list[str]:
    """What one rank's copies record, in two runs; block a holds ones, b twos, and so on.

    `host` are the blocks that begin in host memory; all others begin on the device.
    """
    given = [f"{name}[0]" for name in "abc" if name not in host]
    program = Program(
        format="primepar-program",
        version=1,
        ranks=1,
        programs=(instructions,),
        tensors=TENSORS,
        initial=(tuple(given),),
        host_initial=(tuple(f"{name}[0]" for name in host),),
    )
    mesh = Mesh(parse_sequence(""), dtype=torch.float64)
    copies = mesh.host.copies = FakeCopies()
    run = Executor(mesh, program)
    for _ in range(2):
        blocks = {f"{name}[0]": torch.full((2,), i + 1.0).double() for i, name in enumerate("abc")}
        here = {name: block for name, block in blocks.items() if name in given}
        run(here, host={name: block for name, block in blocks.items() if name not in given})
        copies.queued.append("next run")
    half = len(copies.queued) // 2
    assert copies.queued[:half] == copies.queued[half:]
    return copies.queued[: half - 1]


def test_a_run_without_copies_does_not_wait_for_the_stream() -> None:
    assert queued(Compute(("a[0]", "b[0]"), "d[0]")) == []


def test_the_first_instruction_that_names_a_fetched_block_waits_for_it_alone() -> None:
    assert queued(
        Fetch("a[0]"),
        Fetch("b[0]"),
        Compute(("c[0]",), "d[0]"),
        Compute(("b[0]",), "d[0]"),
        Compute(("a[0]", "b[0]"), "d[0]"),
        host="ab",
    ) == ["copy 1", "copy 2", "wait until copied 2", "wait until copied 1", "finish"]


def test_a_sum_into_a_fetched_block_waits_and_so_does_its_end() -> None:
    assert queued(
        Fetch("a[0]"), Compute(("c[0]",), "a[0]"), Evict("a[0]"), Fetch("b[0]"), Free("b[0]"),
        host="ab",
    ) == [
        "copy 1", "wait until copied 1", "copy 4", "copy 2", "wait until copied 2", "finish",
    ]  # fmt: skip


def test_a_block_that_nothing_names_arrives_at_the_end() -> None:
    assert queued(Fetch("a[0]"), Alloc("d[0]"), host="a") == ["copy 1", "finish"]


class FakeStream:
    """One CUDA stream that records its calls under a name."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def wait_stream(self, other: FakeStream) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.calls.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.calls.append(f"{self.name} records")
        return f"what {self.name} recorded"

    def synchronize(self) -> None:
        self.calls.append(f"host waits for {self.name}")


class FakeBlock:
    """A block on a GPU, or in pinned host memory."""

    def __init__(self, calls: list[str], *, is_cuda: bool) -> None:
        self.calls, self.is_cuda = calls, is_cuda

    def copy_(self, source: FakeBlock, *, non_blocking: bool) -> None:
        assert non_blocking
        self.calls.append("copy to GPU" if self.is_cuda else "copy to host")

    def record_stream(self, stream: FakeStream) -> None:
        assert self.is_cuda
        self.calls.append(f"memory is kept for {stream.name}")


def test_a_copy_comes_after_the_products_before_it_and_what_needs_it_waits_for_its_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: FakeStream("copies", calls))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: FakeStream("compute", calls))
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    copies = CopyStream(torch.device("cuda"))
    block, kept = (FakeBlock(calls, is_cuda=on_gpu) for on_gpu in (True, False))
    copies.copy(kept, block)  # type: ignore[arg-type]
    arrived = copies.copy(block, kept)  # type: ignore[arg-type]
    copies.wait(arrived)
    copies.finish()
    assert calls == [
        "copies waits for compute", "copy to host", "memory is kept for copies", "copies records",
        "copies waits for compute", "copy to GPU", "memory is kept for copies", "copies records",
        "compute waits for what copies recorded", "host waits for copies",
    ]  # fmt: skip
