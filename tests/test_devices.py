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

from primepar.distributed.training.devices import (
    UsedDevice,
    agreed_device,
    check_devices,
    pick_device,
    used_device,
)
from primepar.errors import LaunchError

CPU = "add --set training.device=cpu"


@contextmanager
def visible(*gpus: str) -> Iterator[list[torch.device]]:
    """A process that sees GPUs with these UUIDs; yields the devices that it makes current."""
    current: list[torch.device] = []

    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=gpus[device.index])

    with (
        patch("torch.cuda.is_available", return_value=bool(gpus)),
        patch("torch.cuda.device_count", return_value=len(gpus)),
        patch("torch.cuda.get_device_properties", properties),
        patch("torch.cuda.set_device", current.append),
    ):
        yield current


def message_of(used: list[UsedDevice]) -> str:
    with pytest.raises(LaunchError) as caught:
        check_devices(used)
    return str(caught.value)


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


def test_a_missing_gpu_is_reported() -> None:
    with visible(), pytest.raises(LaunchError) as caught:
        pick_device("cuda", 0)
    assert str(caught.value) == (
        f"training.device: expected a GPU that torch sees, got none: {CPU}, or install a torch "
        "with CUDA and look at CUDA_VISIBLE_DEVICES"
    )


def test_ranks_that_see_one_gpu_each_use_them() -> None:
    """As under a launcher that sets CUDA_VISIBLE_DEVICES for every rank."""
    check_devices([UsedDevice("host", gpu) for gpu in "abcd"])


def test_hosts_that_were_cloned_may_have_gpus_of_one_name() -> None:
    check_devices([UsedDevice("here", "a"), UsedDevice("there", "a")])


def test_cpus_are_shared() -> None:
    check_devices([UsedDevice("host", "")] * 4)


def test_two_ranks_on_one_gpu_are_refused() -> None:
    used = [UsedDevice("host", gpu) for gpu in "abab"]
    assert message_of(used) == (
        "device: expected a GPU of its own for each of 4 processes, as NCCL demands, got one GPU "
        f"for ranks 0, 2: start 2 processes, or {CPU}"
    )
    assert message_of([UsedDevice("host", "a")] * 2) == (
        "device: expected a GPU of its own for each of 2 processes, as NCCL demands, got one GPU "
        f"for ranks 0, 1: start 1 process, or {CPU}"
    )


def test_a_rank_without_a_gpu_next_to_ranks_with_one_is_refused() -> None:
    used = [UsedDevice("host", gpu) for gpu in ("a", "", "b")]
    assert message_of(used) == (
        "device: expected a GPU on every rank or on none, got none on rank 1 of 3: make a GPU "
        f"visible to each, or {CPU}"
    )


def test_the_host_is_the_one_that_nccl_takes() -> None:
    with visible("a"), patch.dict("os.environ", {"NCCL_HOSTID": "first"}):
        assert used_device(torch.device("cuda", 0)) == UsedDevice("first", "a")


def agreed(size: int) -> list[str]:
    """What ranks in threads agree on: their devices, or the error that they end with."""
    store, ends = HashStore(), [""] * size

    def rank_agrees(rank: int) -> None:
        try:
            ends[rank] = str(agreed_device("auto", store, rank, size, rank))
        except (LaunchError, SystemExit) as error:
            ends[rank] = f"{type(error).__name__}: {error}"

    threads = [Thread(target=rank_agrees, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


def test_ranks_agree_and_make_their_gpus_current() -> None:
    with visible("a", "b") as current:
        assert agreed(2) == ["cuda:0", "cuda:1"]
    assert sorted(map(str, current)) == ["cuda:0", "cuda:1"]


def test_one_rank_reports_that_devices_do_not_fit() -> None:
    with visible("a") as current:
        ends = agreed(2)
    assert [end.partition(":")[0] for end in ends] == ["LaunchError", "SystemExit"]
    assert current == []
