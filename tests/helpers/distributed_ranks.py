"""Runs a function on real processes of one world; a server with torch loaded forks them."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.distributed as dist
from lowered_steps import lower_linear, lower_step, shared

from primepar.distributed.modules import linear
from primepar.distributed.runtime import step_programs
from primepar.distributed.training.backends import schedule_as_batch
from primepar.distributed.training.launch import NCCL_VARIABLES

SECONDS = {"gloo": 240, "nccl": 90}
"""Deadlines. On a GPU that is lent for minutes a hang may not cost all of them; before it each rank
prints where it is."""
PRELOADED = [
    "primepar.cli", "primepar.distributed.modules.model",
    "primepar.distributed.training.trainer", "primepar.distributed.checkpoints.loading",
    "primepar.distributed.modules.weights", "torch._dynamo",
]  # fmt: skip
"""What the server loads once for all ranks."""


def serve_forks() -> None:
    """Start the server now, for this process and its forks: each would load torch once more.

    What its ranks print is not shown.
    """
    server = multiprocessing.forkserver._forkserver
    server.set_forkserver_preload(PRELOADED)
    with Path(os.devnull).open("w") as nowhere:
        shown = {number: os.dup(number) for number in (1, 2)}
        for number in shown:
            os.dup2(nowhere.fileno(), number)
        server.ensure_running()
        for number, copy in shown.items():
            os.dup2(copy, number)
            os.close(copy)
    # A fork may not wait for what is not its child.
    patch.object(server, "ensure_running", lambda: None).start()


def on_ranks(
    size: int,
    work: Callable[..., Any],
    *arguments: Any,
    backend: str = "gloo",
    imported: tuple[str, ...] = (),
) -> list[Any]:
    """Call `work(*arguments)` on `size` processes of one world, and return what each returns.

    Workers of one pytest run share what is returned or raised: the first that asks runs it. With
    NCCL each has a GPU, or all share one. `work` is a function of a module. Modules that take
    long are `imported` once, by a process that forks the ranks.
    Raises `RuntimeError` with the first traceback, and leaves no process behind.
    """
    call = pickle.dumps((size, work.__module__, work.__qualname__, arguments, backend))
    answers: list[Any] | RuntimeError = shared(
        call,
        lambda: _answered(imported, size, work, arguments, backend),
        carried=backend == "gloo",  # what is tested on a GPU is done there
    )
    if isinstance(answers, RuntimeError):
        raise answers
    return answers


def _answered(*given: Any) -> list[Any] | RuntimeError:
    try:
        return _led(*given)
    except RuntimeError as error:
        return RuntimeError(str(error))


def forked(
    target: Callable[..., Any], *arguments: Any, start: Literal["fork", "forkserver"] = "forkserver"
) -> BaseProcess:
    """Start a process; a server that has torch loaded forks it, or this process."""
    process: BaseProcess
    if start == "fork":
        process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)  # without effect where it is there
        process = context.Process(target=target, args=arguments)
    process.start()
    return process


def _led(
    imported: tuple[str, ...],
    size: int,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    backend: str,
) -> list[Any]:
    """Run ranks, by another process if modules are to be imported first."""
    if not imported:
        return _ran(size, work, arguments, backend)
    here, there = multiprocessing.Pipe(duplex=False)
    leader = forked(_lead, there, imported, size, work, arguments, backend)
    there.close()
    failed, answer = received(here)
    leader.join()
    if failed:
        raise RuntimeError(answer)
    answers: list[Any] = answer
    return answers


def _lead(
    end: Connection,
    imported: tuple[str, ...],
    size: int,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    backend: str,
) -> None:
    try:
        for name in imported:
            import_module(name)
        answers = _ran(size, work, arguments, backend, start="fork")
        end.send_bytes(pickle.dumps((False, answers)))
    except Exception as error:
        end.send_bytes(pickle.dumps((True, str(error))))


def _ran(
    size: int,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    backend: str,
    start: Literal["fork", "forkserver"] = "forkserver",
) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        store, ends, processes = str(Path(folder) / "store"), [], []
        for rank in range(size):
            here, there = multiprocessing.Pipe(duplex=False)
            given = (there, store, backend, rank, size, work, arguments)
            process = forked(_rank, *given, start=start)
            there.close()
            ends.append(here)
            processes.append(process)
        try:
            return _results(ends, SECONDS.get(backend, SECONDS["gloo"]))
        finally:
            for process in processes:
                process.join(0.5)
                process.kill()
                process.join()


def _results(ends: list[Connection], seconds: float) -> list[Any]:
    """Poll all ranks together: the first to fail is why the others wait."""
    results: dict[int, Any] = {}
    deadline = time.monotonic() + seconds
    while len(results) < len(ends):
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {sorted(set(range(len(ends))) - set(results))} hang")
        for rank, end in enumerate(ends):
            if rank not in results and end.poll(0.01):
                failed, results[rank] = received(end)
                if failed:
                    raise RuntimeError(f"rank {rank}: {results[rank]}")
    return [results[rank] for rank in range(len(ends))]


def received(end: Connection) -> tuple[bool, Any]:
    """Whether a rank failed, and its traceback or its result."""
    try:
        answer: tuple[bool, Any] = pickle.loads(end.recv_bytes())
    except EOFError:
        return True, "died"
    return answer


def _rank(
    end: Connection,
    store: str,
    backend: str,
    rank: int,
    size: int,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    schedule_as_batch()  # as the ranks of a training run
    # Once for all that a world runs.
    patch.object(step_programs, "lower_step", lower_step).start()
    patch.object(linear, "lower_linear", lower_linear).start()
    gc.freeze()  # what was loaded before the fork stays shared with the server
    gc.set_threshold(100_000, 20, 50)
    try:
        if backend == "nccl":
            os.environ.update(NCCL_VARIABLES)
            faulthandler.dump_traceback_later(SECONDS["nccl"] - 5)
        device = use_gpu(rank, size) if backend == "nccl" else None
        if backend.startswith("nccl_rules"):
            import_module("nccl_rules")  # registers it
        dist.init_process_group(
            backend, f"file://{store}", rank=rank, world_size=size, device_id=device,
            timeout=timedelta(seconds=SECONDS["nccl"] - 20 if backend == "nccl" else 1800),
        )  # fmt: skip
        result = work(*arguments)
        dist.barrier()
        end.send_bytes(
            pickle.dumps((False, result))
        )  # by value: the sender of a tensor may be gone
    except BaseException:
        end.send_bytes(pickle.dumps((True, traceback.format_exc())))
        raise SystemExit(1) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def use_gpu(rank: int, size: int) -> torch.device:
    """Make this rank's GPU the current one; all ranks share those that are there."""
    one_host_each(rank, size)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def sums_in_one_order(device: torch.device) -> None:
    """Let a GPU repeat its results bit for bit: `index_add_` else adds as its threads come."""
    if device.type == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)


def device_of_rank() -> torch.device:
    """This rank's GPU where NCCL joins the ranks, else the CPU."""
    on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def one_host_each(rank: int, size: int) -> None:
    """Let NCCL take one GPU for several ranks, where there are fewer GPUs than ranks.

    NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected"). It knows the host by
    a hash of its name, or of `NCCL_HOSTID` (`getHostHash` in its `src/misc/utils.cc`). Ranks of
    different hosts talk through sockets, here those of the loop-back interface. This is slow and
    only for tests.
    """
    if torch.cuda.device_count() < size:
        os.environ["NCCL_HOSTID"] = f"primepar-{rank}"
        os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
