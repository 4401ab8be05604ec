"""Starts the ranks of one world: a server that has loaded torch forks them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PRELOADED = ["benchmarks.executor.cases", "primepar.distributed.modules.model"]


def on_ranks(
    size: int, work: Callable[..., Any] | str, *arguments: Any, as_batch: bool = False
) -> Any:
    """Call `work(*arguments)` on `size` processes over gloo, and return what rank 0 returns.

    `work` may be named, as in `package.module:function`, so that only the ranks load torch. With
    `as_batch` they run under the policy of Linux that `primepar train` sets.

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
            failed, answer = ours.recv()
        except EOFError:
            failed, answer = True, "a rank died"
        finally:
            for process in processes:
                process.join(1)
                process.kill()
                process.join()
    if failed:
        raise RuntimeError(answer)
    return answer


def _rank(
    end: Connection,
    store: str,
    rank: int,
    size: int,
    work: Callable[..., Any] | str,
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
        result = _named(work)(*arguments) if isinstance(work, str) else work(*arguments)
        dist.barrier()
        if rank == 0:
            end.send((False, result))
    except BaseException:
        end.send((True, f"rank {rank}: {traceback.format_exc()}"))
        raise SystemExit(1) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _named(work: str) -> Callable[..., Any]:
    module, _, name = work.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
