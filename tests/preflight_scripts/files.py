"""Writes, renames and deletes files, and reads what another rank wrote."""
# ruff: noqa: PTH103, PTH104, PTH107, PTH110, PTH112, PTH123, PTH208

import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

dist.init_process_group("gloo")
rank, script = dist.get_rank(), Path("files.py")
text = script.read_text()
with open(script, "a") as file:
    file.write("more")
assert script.read_text() == text + "more"
os.makedirs("checkpoints/last", exist_ok=True)
if rank == 0:
    torch.save({"weight": torch.ones(3)}, "checkpoints/weights.pt")
    Path("checkpoints/one.json").write_text("[1]")
    os.rename("checkpoints/one.json", "checkpoints/two.json")
    assert sorted(os.listdir("checkpoints")) == ["last", "two.json", "weights.pt"]
    assert not os.path.exists("checkpoints/one.json")
    save_file({"weight": torch.ones(3)}, "checkpoints/weights.safetensors")
dist.barrier()
assert load_file("checkpoints/weights.safetensors")["weight"].sum() == 3
weight = torch.load("checkpoints/weights.pt")["weight"]
os.remove(script)
assert not script.exists()
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "note").write_text("1")
shutil.rmtree("checkpoints")
assert not os.path.isdir("checkpoints")
try:
    Path("nothing.txt").read_text()
except FileNotFoundError:
    dist.all_reduce(weight)
