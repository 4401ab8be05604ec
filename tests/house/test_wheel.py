"""The wheel, built from the sdist, holds every module of the package as a real file."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling import build

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_made_from_the_sdist_holds_the_linked_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build backend is called as `python -m build` calls it, in the folder of the project."""
    monkeypatch.chdir(ROOT)
    sdist = tmp_path / build.build_sdist(str(tmp_path))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / sdist.name.removesuffix(".tar.gz"))
    wheel = tmp_path / build.build_wheel(str(tmp_path))
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
