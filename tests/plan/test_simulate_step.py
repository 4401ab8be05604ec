"""A plan's step simulated: its program's own counts, operations by formula, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import run
from lowered_steps import lower_step

from primepar.models import ModelConfig, load_config
from primepar.plan import preset_plan
from primepar.plan.cluster import load_cluster, shipped_clusters
from primepar.plan.simulator.step import simulate_step
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate

CONFIG = Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json"
H200 = load_cluster("h200-8")


@pytest.fixture(scope="module")
def model() -> ModelConfig:
    return replace(load_config(CONFIG), layers=1)


@pytest.mark.parametrize("name", ["M2,megatron", "data", "primepar"])
def test_a_step_sends_and_holds_what_its_program_does_on_emulated_devices(
    model: ModelConfig, name: str
) -> None:
    plan = preset_plan(name, model, 4)
    simulated = simulate_step(plan, 4, 4, H200, "float32")
    program = lower_step(plan, 4, 4)
    emulated = emulate(program, memories(program))
    assert simulated.sent == [4 * elements for elements in emulated.sent]
    assert simulated.peak == [4 * elements for elements in emulated.peak]


@pytest.mark.parametrize(("name", "batch"), [("megatron", 1), ("data", 4), ("data", 2)])
def test_operations_are_those_of_products_and_attention(
    model: ModelConfig, name: str, batch: int
) -> None:
    """Also where two ranks share a sequence; the vocabulary is padded to the ranks that cut it."""
    plan = preset_plan(name, model, 4)
    rows, hidden, vocabulary = batch * 8, model.hidden, 260 if name == "megatron" else 257
    weights = hidden * (3 * hidden + hidden + 2 * model.ffn + vocabulary)
    attention = (2 + 5) * 2 * rows * 8 * hidden
    simulated = simulate_step(plan, batch, 8, H200, "float32")
    assert sum(simulated.operations) == 3 * 2 * rows * weights + attention


# The command

P2X2 = ("simulate", "P2x2", "--shape", "4096,4096,4096", "--cluster", "v100-8x4")


def test_the_command_prints_time_memory_and_links() -> None:
    """A step takes 1.22 ms of products; with hops, 2 of 16.8 MB at 25 GB/s, it takes 1.35 ms.

    Four steps have hops, so the links are busy for 5.42 ms.
    """
    done = run(*P2X2)
    assert (done.code, done.err) == (0, "")
    assert (
        done.out
        == """\
P2x2 on 4 devices of 8 x 4 V100, as in the PrimePar paper, float32
  time       7.764 ms
  operations 412.3 G, 53.11 T per second, 89.7% of what products achieve
  computing  7.373 ms per device
  transfers  5.419 ms per device, 92.8% hidden by computing
  sent       134.2 MB per device
  peak       134.2 MB per device, of 34.36 GB
  links      536.9 MB within 4 devices, the busiest 69.1% of the time

                  0                                                                         7.764 ms
"""
        + "".join(
            f"rank {rank}  products  "
            "FFFFFFFFFFFFF.FFFFFFFFFFFFFBBBBBBBBBBBBB.BBBBBBBBBBBBBGGGGGGGGGGGGG..GGGGGGGGGGGGG\n"
            "        links     "
            "---------------............----------------------.....----------------------......\n"
            for rank in range(4)
        )
        + "F forward  B backward  G gradient  o other  - message  = collective  . nothing\n"
    )


def test_json_has_the_same_numbers() -> None:
    report = json.loads(run(*P2X2, "--json").out)
    block = 4 * 2048**2
    assert report["ranks"] == 4
    assert report["operations"] == [3 * 2 * 4096**3 // 4] * 4
    assert report["sent"] == [8 * block] * 4
    assert report["fits"] is True
    assert sum(row["bytes"] for row in report["traffic"] if row["way"] == "out") == 32 * block


def test_a_plan_prints_tokens_per_second() -> None:
    command = ("simulate", "megatron", "--model", str(CONFIG), "--devices", "2", "--batch", "2",
               "--positions", "8", "--cluster", "h200-8")  # fmt: skip
    report = json.loads(run(*command, "--json").out)
    step = report["step"]
    assert (step["batch"], step["positions"], report["dtype"]) == (2, 8, "bfloat16")
    assert step["tokens_per_second"] == 16 / report["seconds"]
    assert run(*command).out.splitlines()[0] == (
        "megatron on 2 devices of 8 x H200, NVLink, bfloat16, a step of 2 sequences of 8 tokens"
    )


@pytest.mark.parametrize(("suffix", "start"), [("svg", "<svg"), ("json", "{"), ("txt", "   ")])
def test_the_time_line_is_written(tmp_path: Path, suffix: str, start: str) -> None:
    path = tmp_path / f"timeline.{suffix}"
    done = run(*P2X2, "-o", str(path))
    assert done.out.splitlines()[-1] == f"wrote {path}"
    assert path.read_text().startswith(start)


def test_too_little_memory_is_printed() -> None:
    shape = ("--shape", "65536,65536,65536")
    done = run("simulate", "K2", *shape, "--cluster", "v100-8x4")
    assert "more than its 34.36 GB" in done.out
    printed = run("simulate", "K2", *shape, "--cluster", "v100-8x4", "--json").out
    assert json.loads(printed)["fits"] is False


WRONG = {
    ("P2x2", "--cluster", "h200-8"): (
        "P2x2: expected the operator's shape, of which its time is, got none: "
        "write --shape 4096,4096,4096"
    ),
    ("docs/examples/overlap.json", "--shape", "8,8,8", "--cluster", "h200-8"): (
        "docs/examples/overlap.json: expected no --shape, as a program names its own, got --shape "
        '8,8,8: write it into the file, "shape": {"M": 4, "N": 4, "K": 4}'
    ),
    ("P2x2", "--shape", "8,8", "--cluster", "h200-8"): (
        "--shape: expected M,N,K or B,M,N,K, got '8,8': write it like --shape 8,8,8"
    ),
    ("P2x2", "--shape", "8,8,8", "--cluster", "h300"): (
        f"h300: expected a cluster file or one of {', '.join(shipped_clusters())}, got no such "
        "file or directory: write h200"
    ),
    ("P4x4", "--shape", "8,8,8", "--cluster", "h200-8"): (
        "expected at most the 8 devices of the cluster 8 x H200, NVLink, got 16 ranks: take a "
        "larger cluster"
    ),
    ("P2x2", "--shape", "8,8,8", "--cluster", "h200-8", "--dtype", "int8"): (
        "expected a data type that the cluster 8 x H200, NVLink has rates of (bfloat16, float8, "
        "float16, float32), got int8: take one of these, or add [rates.int8]"
    ),
    ("P2x2", "--shape", "8,8,8", "--cluster", "h200-8", "-o", "a.png"): (
        "--output: expected a name that ends with .svg (the picture), .json (the trace), .txt "
        "(the text) or .et (a Chakra trace for each rank), got a.png"
    ),
}


@pytest.mark.parametrize("arguments", WRONG, ids=lambda words: " ".join(words[1:]))
def test_wrong_input_is_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    done = run("simulate", *arguments)
    assert (done.code, done.out, done.err) == (2, "", f"primepar: error: {WRONG[arguments]}\n")


def test_a_deadlock_ends_with_1() -> None:
    path = CONFIG.parent / "head-on.json"
    done = run("simulate", str(path), "--cluster", "h200-8")
    assert (done.code, done.out) == (1, "")
    expected = "primepar: error: expected every rank to end, got 2 that wait without end"
    assert done.err.startswith(expected)
