"""Peak of new memory: what a contender allocates above its input and its weights.

The profiler of torch reports every allocation of torch's allocator, in the threads of gloo too. It
records from before a contender is made until after its second step. The peak is the largest sum
during the steps, less what the contender holds from the start. So memory that is laid out when a
program is compiled counts as new, and memory that a step keeps for the next one counts too. Buffers
inside gloo and the blocks that malloc keeps are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

import torch
from torch import distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.executor.contender import Contender

BEGIN = "steps begin"


TIMES = 3
"""Peaks of a contender, of which the median counts: gloo frees what it has sent a little later."""


def peak_new_bytes(make: Callable[[], Contender]) -> int:
    """The largest peak of all ranks, in bytes, the median of some; a collective call."""
    return int(median(_peak(make) for _ in range(TIMES)))


def _peak(make: Callable[[], Contender]) -> int:

    def two_steps() -> int:
        contender = make()
        resident = bytes_of(contender.resident())
        with record_function(BEGIN):
            pass
        contender.step()
        contender.step()
        return resident

    peak = torch.tensor(peak_of(two_steps))
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return int(peak)


def peak_of(work: Callable[[], int]) -> int:
    """The most bytes that exist after `BEGIN` of what `work` allocates, less what it returns."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        resident = work()
    profiler = recorded.profiler
    assert profiler is not None
    assert profiler.kineto_results is not None
    events = [
        (event.start_ns(), event.name(), event.nbytes())
        for event in profiler.kineto_results.events()
        if event.name() in (BEGIN, "[memory]")
    ]
    return peak_after_begin(sorted(events, key=lambda event: event[0])) - resident


def peak_after_begin(events: Iterable[tuple[int, str, int]]) -> int:
    """The largest sum of bytes from `BEGIN` on; each event is (time, name, bytes)."""
    live, peak, begun = 0, 0, False
    for _, name, allocated in events:
        live += allocated
        begun = begun or name == BEGIN
        peak = max(peak, live) if begun else 0
    return peak


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of tensors that share no memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
