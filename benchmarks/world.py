"""Starts the ranks of one world: a server that has loaded torch forks them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.bench import OF_RANKS, cpu_seconds

_PRELOADED = ["benchmarks.contenders", "primepar.distributed.modules.model"]


def on_ranks(size: int, work: str, *arguments: Any, as_batch: bool = False) -> Any:
    """Call `work(*arguments)` on `size` processes over gloo, and return what rank 0 returns.

    `work` is named as in `package.module:function`. With `as_batch` the ranks run under the policy
    of Linux that `primepar train` sets.

    Raises `RuntimeError` with the traceback of the first rank that fails.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler of torch prints its start and stop
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        store, (ours, theirs) = str(Path(folder) / "store"), context.Pipe(duplex=False)
        processes = [
            context.Process(
                target=_rank, args=(theirs, store, rank, size, work, arguments, as_batch)
            )
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        theirs.close()
        try:
            failed, answer, used = ours.recv()
        except EOFError:
            failed, answer, used = True, "a rank died", 0.0
        finally:
            for process in processes:
                process.join(1)
                process.kill()
                process.join()
    OF_RANKS.append(used)
    if failed:
        raise RuntimeError(answer)
    return answer


def _rank(
    end: Connection,
    store: str,
    rank: int,
    size: int,
    work: str,
    arguments: tuple[Any, ...],
    as_batch: bool,
) -> None:
    import torch
    from torch import distributed as dist

    from primepar.distributed.training.backends import keep_freed_memory, schedule_as_batch

    torch.set_num_threads(1)
    if as_batch:
        keep_freed_memory()
        schedule_as_batch()
    try:
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
        module, _, name = work.partition(":")
        result = getattr(import_module(module), name)(*arguments)
        used = torch.tensor(cpu_seconds(), dtype=torch.float64)
        dist.all_reduce(used)
        if rank == 0:
            end.send((False, result, float(used)))
    except BaseException:
        end.send((True, f"rank {rank}: {traceback.format_exc()}", 0.0))
        raise SystemExit(1) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
