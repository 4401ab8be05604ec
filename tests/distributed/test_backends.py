"""The backend of a mesh is that of its device, as a world may have one for each kind."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from distributed_ranks import on_ranks
from gpu_cases import mesh_backend

from primepar.distributed.runtime.mesh import backend_of

CONFIGS = ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo")


@pytest.mark.parametrize(
    ("config", "device", "backend"),
    [
        ("cpu:gloo,cuda:nccl", "cuda", "nccl"),
        ("cpu:gloo,cuda:nccl", "cpu", "gloo"),
        ("cuda:nccl", "cuda", "nccl"),
        ("cuda:nccl", "cpu", "whole"),
    ],
)
def test_each_kind_of_device_has_its_own(config: str, device: str, backend: str) -> None:
    with (
        patch("torch.distributed.get_backend_config", return_value=config),
        patch("torch.distributed.get_backend", return_value="whole"),
    ):
        assert backend_of(device) == backend


def test_a_world_that_names_its_device_is_a_world_on_gloo() -> None:
    assert [on_ranks(1, mesh_backend, backend=config) for config in CONFIGS] == [["gloo"]] * 3
