"""Rows of public scripts, and what preflight has for such scripts."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.preflight_scoreboard import PublicAnswer, SeededScript, answer
from benchmarks.public_scripts import (
    PUBLIC,
    PublicScript,
    fetched,
    prepared,
    public_scripts,
)
from primepar.preflight.capture.torch_script import StandInPackages


def test_rows_are_of_different_scripts_at_whole_commits() -> None:
    commits, rows = public_scripts()
    names = [(row.repository, row.script, row.title) for row in rows]
    assert len(set(names)) == len(names) >= 60
    assert {row.repository for row in rows} == set(commits)
    assert {len(commit) for commit in commits.values()} == {40}
    shared = [text[2:] for row in rows for text in row.files.values() if text.startswith("= ")]
    assert all((PUBLIC / name).is_file() for name in shared)


def test_a_script_is_taken_of_a_local_copy_and_patched(tmp_path: Path) -> None:
    copy, there = tmp_path / "mirror/owner+name/repo", tmp_path / "there"
    git = ["git", "-C", str(copy), "-c", "user.name=a", "-c", "user.email=a@b"]
    copy.mkdir(parents=True)
    there.mkdir()
    (copy / "train.py").write_text("steps = 100\n")
    for command in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    # `repo` is a git folder, as a bare copy is.
    (copy / ".git").rename(tmp_path / "bare")
    for file in copy.iterdir():
        file.unlink()
    copy.rmdir()
    (tmp_path / "bare").rename(copy)
    mirror = str(tmp_path / "mirror")
    assert fetched("owner/name", commit.stdout.strip(), there, mirror) == ""
    row = PublicScript("owner/name", "train.py", patch=(("train.py", "100", "2"),))
    assert prepared(row, there) == ""
    assert (there / "train.py").read_text() == "steps = 2\n"
    assert prepared(row, there) == "the patch of train.py does not apply: no '100'"
    assert row.lines_patched == 1
    why = fetched("owner/name", "0" * 40, there, mirror)
    assert why.startswith("owner/name at 00000000: not fetched: ")


@pytest.mark.parametrize(
    ("verdict", "gloo", "broken", "is_false"),
    [
        ("proved", "ends", "", False),
        ("proved", "hangs", "", True),
        ("proved", "rank 1 raises ValueError", "", True),
        ("proved", "ends", "loses a gradient", True),
        ("refuted", "ends", "", True),
        ("refuted", "ends", "loses a gradient", False),
        ("unknown", "hangs", "", False),
    ],
)
def test_a_verdict_is_false_where_a_run_contradicts_it(
    verdict: str, gloo: str, broken: str, is_false: bool
) -> None:
    assert PublicAnswer("", 2, 0, verdict, 0, 1.0, gloo, "", broken).is_false == is_false


SPAWNS = """
import torch
import torch.distributed as dist
from flash_attn import flash_attn_func
from torch.nn.parallel import DistributedDataParallel


def train(rank, steps):
    dist.init_process_group("nccl", rank=rank, world_size=2)
    device = torch.device(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 4).to(device), device_ids=[rank])
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for _ in range(steps):
        with torch.autocast("cuda", dtype=torch.float16):
            x = model(torch.randn(2, 4, device=device)).view(1, 2, 2, 2)
            loss = flash_attn_func(x, x, x, causal=True).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
"""


def test_a_script_that_spawns_its_ranks_is_proved_with_its_gradients() -> None:
    given = answer(SeededScript("spawns", True, 2, SPAWNS, 0))
    assert given.verdict == "proved", given.why
    assert "2 parameters equal on ranks 0,1 after step 2" in given.why
    other = answer(SeededScript("spawns", True, 3, SPAWNS, 0))
    assert other.verdict == "error"
    assert "spawns 2 processes, of 3 ranks: start it with -n 2" in other.why


def test_attention_that_stands_in_has_the_gradients_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, StandInPackages(lambda _: None)])
    attention = importlib.import_module("flash_attn.flash_attn_interface")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, heads, 4, requires_grad=True) for heads in (4, 2, 2))
    keys, values = (x.repeat_interleave(2, 2).transpose(1, 2) for x in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, is_causal=True
    )
    slopes = torch.randn(1, 4, 4, 4)
    gradients = torch.autograd.grad(expected.transpose(1, 2), (q, k, v), slopes)
    q, k, v = (x.detach() for x in (q, k, v))
    out, lse, *_ = attention._flash_attn_forward(q, k, v, 0.0, 0.5, True)
    torch.testing.assert_close(out, expected.detach().transpose(1, 2))
    mine = [torch.empty_like(x) for x in (q, k, v)]
    attention._flash_attn_backward(slopes, q, k, v, out, lse, *mine, 0.0, 0.5, True)
    torch.testing.assert_close(mine, list(gradients))
    starts = torch.tensor([0, 4], dtype=torch.int32)
    flat = [x[0] for x in (q, k, v)]
    packed, rows, *_ = attention._flash_attn_varlen_forward(
        *flat, starts, starts, 4, 4, 0.0, 0.5, True
    )
    torch.testing.assert_close(packed, out[0])
    parts = [torch.empty_like(x) for x in flat]
    attention._flash_attn_varlen_backward(
        slopes[0], *flat, packed, rows, *parts, starts, starts, 4, 4, 0.0, 0.5, True
    )
    torch.testing.assert_close(parts, [x[0] for x in gradients])
    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        sys.modules.pop(name)
