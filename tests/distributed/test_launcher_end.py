"""A launcher that waits for a lost machine ends when its ranks have ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from primepar.distributed.training.launcher_end import launchers_of

RANK = """
import os
from primepar.distributed.training.launcher_end import end_launchers_later, launchers_of
for process in launchers_of(os.getpid()):
    print(open(f"/proc/{process}/comm").read(), end="")
end_launchers_later(0.1)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process file descriptors of Linux")
def test_all_launchers_of_a_rank_end_and_the_shell_above_them_does_not(tmp_path: Path) -> None:
    """MPICH's mpirun starts a proxy, which starts the rank; here both are shells that wait."""
    shell = shutil.which("sh")
    assert shell is not None
    for name in ("mpirun", "hydra_pmi_proxy"):
        (tmp_path / name).symlink_to(shell)
    (tmp_path / "rank.py").write_text(RANK)
    wait = "read line"  # until the end of stdin, which does not come
    proxy = f"{tmp_path}/hydra_pmi_proxy -c '{sys.executable} {tmp_path}/rank.py; {wait}'"
    outer = f'{tmp_path}/mpirun -c "{proxy}; {wait}"; echo ended by signal $(($? - 128))'
    read, write = os.pipe()
    done = subprocess.run(
        [shell, "-c", outer], stdin=read, capture_output=True, text=True, timeout=60,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    os.close(read)
    os.close(write)
    assert done.stdout == "hydra_pmi_proxy\nmpirun\nended by signal 15\n"


def test_a_process_without_a_launcher_has_none_to_end() -> None:
    assert launchers_of(os.getpid()) == []
