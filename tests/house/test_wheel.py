"""The wheel, built from the sdist, holds every module of the package as a real file."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_made_from_the_sdist_holds_the_linked_folders(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert {n: b for n, b in held.items() if n.startswith("primepar/")} == package_files()


def package_files() -> dict[str, bytes]:
    """Return every file under primepar/, links followed, by its name in a wheel."""
    folders = [ROOT / "primepar"]
    found: dict[str, bytes] = {}
    while folders:
        for path in folders.pop().iterdir():
            if path.is_dir() and path.name != "__pycache__":
                folders.append(path)
            elif path.is_file():
                found[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    return found
