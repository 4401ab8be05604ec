"""The device of each rank, as torch and NCCL see it; the GPUs here are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from primepar.distributed.training.backends import (
    UsedDevice,
    check_devices,
    pick_device,
    used_device,
)
from primepar.distributed.training.launch import World
from primepar.distributed.training.settings import DeviceChoice
from primepar.errors import LaunchError

CPU = torch.device("cpu")


@contextmanager
def visible(*gpus: str) -> Iterator[None]:
    """A process that sees GPUs with these UUIDs."""

    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=gpus[device.index])

    with (
        patch("torch.cuda.is_available", return_value=bool(gpus)),
        patch("torch.cuda.device_count", return_value=len(gpus)),
        patch("torch.cuda.get_device_properties", properties),
    ):
        yield


def checked(*used: UsedDevice) -> list[str]:
    """What ranks in threads, each with a device, are refused with; empty for none."""
    store, messages = HashStore(), [""] * len(used)

    def check(rank: int) -> None:
        try:
            check_devices(used[rank], World(rank, len(used), CPU, store).exchange)
        except LaunchError as error:
            messages[rank] = str(error)

    threads = [Thread(target=check, args=(rank,)) for rank in range(len(used))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return messages


@pytest.mark.parametrize(
    ("gpus", "local_rank", "device"),
    [
        ((), 0, "cpu"),
        (("a", "b"), 0, "cuda:0"),
        (("a", "b"), 1, "cuda:1"),
        (("b",), 1, "cuda:0"),
        (("c", "d"), 3, "cuda:1"),
    ],
)
def test_a_process_takes_the_gpu_of_its_rank_among_those_that_it_sees(
    gpus: tuple[str, ...], local_rank: int, device: str
) -> None:
    with visible(*gpus):
        assert pick_device("auto", local_rank) == torch.device(device)
        assert pick_device("cpu", local_rank) == torch.device("cpu")


@pytest.mark.parametrize(
    ("cuda", "got"),
    [
        (None, f"torch {torch.__version__}, which is built without it: install a build with CUDA"),
        ("13.0", "no GPU that torch can use: look at nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_cuda_that_is_not_there_is_reported(cuda: str | None, got: str) -> None:
    with visible(), patch("torch.version.cuda", cuda), pytest.raises(LaunchError) as caught:
        pick_device("cuda", 0)
    assert str(caught.value) == (
        f"training.device: expected CUDA, got {got}, or write --set training.device=cpu"
    )


def test_ranks_that_see_one_gpu_each_use_them() -> None:
    """As under a launcher that sets CUDA_VISIBLE_DEVICES for every rank."""
    assert checked(*(UsedDevice("host", gpu) for gpu in "abcd")) == [""] * 4


def test_hosts_that_were_cloned_may_have_gpus_of_one_name() -> None:
    assert checked(UsedDevice("here", "a"), UsedDevice("there", "a")) == [""] * 2


@pytest.mark.parametrize("choice", ["auto", "cuda"])
def test_more_processes_than_gpus_are_refused(choice: DeviceChoice) -> None:
    used = []
    for local_rank in range(4):
        with visible("a", "b"), patch("platform.node", return_value="host"):
            used.append(used_device(pick_device(choice, local_rank)))
    message = (
        "training.device: expected a GPU for each of 4 processes on this machine, got 2, and NCCL "
        "takes one process on each: start 2 here, or write --set training.device=cpu"
    )
    assert checked(*used, UsedDevice("other", "c")) == [message] * 5


def test_the_host_is_the_one_that_nccl_takes() -> None:
    with visible("a"), patch.dict("os.environ", {"NCCL_HOSTID": "first"}):
        assert used_device(torch.device("cuda", 0)) == UsedDevice("first", "a")
