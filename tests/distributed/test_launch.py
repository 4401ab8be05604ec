"""Who starts the processes, and the messages where the rendezvous fails."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch
from command import Done, run
from long_runs import ROOT
from profiles import long
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from primepar.distributed.training import launch, launchers
from primepar.distributed.training.failures import GRACE_SECONDS
from primepar.distributed.training.launchers import Launch, first_host, meet, srun_port
from primepar.distributed.training.progress import READING
from primepar.errors import LaunchError, PrimeParError

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "gpu07", "MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "gpu[07-08]"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NODELIST": "gpu[07-08]"}
PROXY = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
"""Of the step in which mpirun has started one process on each machine."""
LOCAL = {"PRIMEPAR_RANK": "1", "PRIMEPAR_RANKS": "4", "PRIMEPAR_STORE": "store"}


def train(environment: dict[str, str], *arguments: str) -> Done:
    """Run `primepar train` as a process of a launcher that left these variables."""
    with patch.dict("os.environ", environment), patch.object(launchers, "GRACE_SECONDS", 0.0):
        return run("train", *arguments)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Launch("alone", 0, 1)),
        (OPEN_MPI, Launch("mpirun", 2, 4)),
        (MPICH, Launch("mpirun", 1, 2)),
        (TORCHRUN, Launch("torchrun", 3, 8)),
        (LOCAL, Launch("local", 1, 4)),
        (SRUN, Launch("srun", 5, 8)),
        ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"}, Launch("srun", 5, 8)),
        ({**SRUN, "PMIX_RANK": "5"}, Launch("srun", 5, 8)),
        (BATCH, Launch("alone", 0, 1)),
        ({**BATCH, **TORCHRUN}, Launch("torchrun", 3, 8)),
        ({**PROXY, **OPEN_MPI, "PMIX_RANK": "2"}, Launch("mpirun", 2, 4)),
        ({**PROXY, **MPICH, "MPI_LOCALRANKID": "1"}, Launch("mpirun", 1, 2)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Launch("alone", 0, 1)),
    ],
)
def test_the_environment_names_the_launcher(environment: dict[str, str], expected: Launch) -> None:
    assert Launch.of(environment) == expected


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "FLUX_TASK_RANK"])
def test_a_process_of_another_launcher_does_not_train_alone(name: str) -> None:
    assert train({name: "1"}) == (
        2,
        "",
        "primepar: error: launcher: expected mpirun, torchrun, srun or --ranks, got a process of "
        f"another one ({name}=1): start all processes with one of these\n",
    )


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu07", "gpu07"), ("gpu[07-09,11],login", "gpu07"), ("a,b", "a"), ("r[1,3-4]n", "r1n")],
)
def test_the_processes_of_srun_meet_on_the_first_machine(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_every_step_of_a_job_has_a_port_of_its_own() -> None:
    steps = [srun_port({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": str(step)}) for step in range(3)]
    assert steps == [20539, 20540, 20541]
    assert srun_port({"MASTER_PORT": "12345"}) == 12345


def test_an_address_in_use_ends_in_one_line() -> None:
    used = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {**TORCHRUN, "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(used.port)}
    with patch.dict("os.environ", variables), pytest.raises(LaunchError) as caught:
        meet(Launch.of(variables))
    assert str(caught.value) == (
        f"torchrun: expected the processes to meet at 127.0.0.1, port {used.port}, got an address "
        "that is in use: set MASTER_PORT to a free port of that machine"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_speaks_at_once_and_the_others_wait(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(PrimeParError), Launch("mpirun", rank, 2).one_error():
        raise PrimeParError
    assert waited == [GRACE_SECONDS] * rank


@pytest.mark.parametrize(("hosts", "code"), [(None, 0), ("1", 0), ("2", 2)])
def test_a_rank_without_a_message_leaves_as_its_launcher_needs_it(
    monkeypatch: pytest.MonkeyPatch, hosts: str | None, code: int
) -> None:
    """After 0 a torchrun waits for the other host's, and mpirun for the rank with the message."""
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.0)
    monkeypatch.delenv(launch.HOSTS, raising=False)
    if hosts is not None:
        monkeypatch.setenv(launch.HOSTS, hosts)
    store = HashStore()
    store.set("plan/1", "failed")
    store.set("plan-read/1", "")
    world = launch.World(0, 2, torch.device("cpu"), store)
    with pytest.raises(SystemExit) as left, world.agreement("plan"):
        pass
    assert left.value.code == code


@long
@pytest.mark.parametrize(
    "variables",
    [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")],
)
def test_another_mpi_is_seen_by_the_size_that_mpirun_claims(variables: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "primepar", "train", "--steps", "1", "--set", "training.batch=4"],
        env={"PATH": "", "HOME": "/tmp", **dict(zip(variables, ("0", "4"), strict=True))},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "primepar: error: mpirun: expected 4 processes to meet, got 1: this mpirun does not belong "
        f"to mpi4py's MPI (Open MPI v{version('openmpi')}); start with the mpirun next to python, "
        "or with primepar train --ranks 4\n"
    )


@pytest.mark.parametrize(
    ("package", "given"),
    [("torch", {}), ("safetensors", {}), ("mpi4py", {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})],
)
def test_a_missing_package_is_reported_with_the_line_that_installs_it(
    package: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_find_spec = find_spec
    monkeypatch.setattr(
        launch, "find_spec", lambda name: None if name == package else real_find_spec(name)
    )
    assert train(given) == (
        2,
        "",
        f"primepar: error: training: expected the package {package}, found none: "
        "run pip install 'primepar[torch]'\n",
    )


def test_the_eight_files_from_the_command_to_a_product_are_printed_in_their_order() -> None:
    words = {"training.batch": 1, "model.layers": 1, "model.hidden": 8, "model.context": 8}
    changes = [word for key, value in words.items() for word in ("--set", f"{key}={value}")]
    done = run("train", "--verbose", "--steps", "1", *changes)
    printed = [line for line in done.out.splitlines() if line.partition(": ")[0] in READING]
    assert printed == [f"{name}: primepar/{file}" for name, file in READING.items()]
    assert len(READING) == len({*READING.values()}) == 8
    assert all((ROOT / line.partition(": ")[2]).is_file() for line in printed)


def test_a_world_that_is_no_square_needs_a_sequence() -> None:
    assert train({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}) == (
        2,
        "",
        "primepar: error: processes: expected a square number for the default sequence, got 3: "
        "choose one of 3 devices, --plan K3, N3 or M3\n",
    )


def test_a_sequence_of_another_size_is_refused() -> None:
    environment = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "6"}
    assert train(environment, "--plan", "P2x2") == (
        2,
        "",
        "primepar: error: sequence P2x2: expected 4 processes, got 6: start 4 (--ranks 4, or "
        "mpirun -n 4), or choose a sequence of 6, --plan K6, N6, M6 or M2,K3\n",
    )


def test_ranks_under_mpirun_are_refused() -> None:
    assert train(OPEN_MPI, "--ranks", "4") == (
        2,
        "",
        "primepar: error: --ranks: expected a process started alone, got one of 4 that mpirun "
        "started: leave --ranks out\n",
    )
