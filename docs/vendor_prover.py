"""The prover that the page runs: Python and Z3 for WebAssembly, and this package, in docs/prover.

Run by `make docs` before the page is made. It fetches pyodide by npm, and by pip the wheels of
z3-solver and msgspec for its platform. Where they cannot be reached there is no
docs/prover, this prints so, and the page shows the command instead. Not kept in git.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from primepar.pictures.page_html import FOLDER

ROOT = Path(__file__).resolve().parent.parent
PROVER = ROOT / "docs" / "prover"
PYODIDE = "pyodide@314.0.7"
PLATFORM, PYTHON = "pyemscripten_2026_0_wasm32", "3.14"
WHEELS = {"z3.zip": "z3-solver==5.3.3.0", "msgspec.zip": "msgspec==0.22.0"}
RUN = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip",
       "pyodide-lock.json")  # fmt: skip
"""Files of pyodide that a page loads."""
LEFT_OUT = {"distributed", "preflight", "commands", "page", "__pycache__"}
"""Rooms of the package that no proof of a map needs."""
STATED = PROVER / "versions.txt"


def main() -> None:
    """Fetch what is not there yet, and pack the package anew."""
    versions = "\n".join([PYODIDE, *WHEELS.values()])
    if not STATED.exists() or STATED.read_text(encoding="utf-8") != versions:
        shutil.rmtree(PROVER, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                fetch(Path(folder))
            except (OSError, subprocess.SubprocessError) as error:
                shutil.rmtree(PROVER, ignore_errors=True)
                print(f"no prover in the page, which shows the command: {error}", file=sys.stderr)
                return
        STATED.write_text(versions, encoding="utf-8")
    pack()
    shutil.copy(FOLDER / "prover_worker.js", PROVER / "prover_worker.js")
    # As text: mkdocs leaves out modules of Python.
    shutil.copy(FOLDER / "numpy_of_lists.py", PROVER / "numpy_of_lists.txt")


def fetch(folder: Path) -> None:
    """Fetch pyodide and the wheels. Raises `OSError` or `SubprocessError`."""
    PROVER.mkdir(parents=True)
    quiet = {"cwd": folder, "check": True, "stdout": subprocess.DEVNULL, "timeout": 600}
    subprocess.run(["npm", "pack", "--silent", PYODIDE], **quiet)  # type: ignore[call-overload]
    with tarfile.open(next(folder.glob("pyodide-*.tgz"))) as archive:
        for member in archive.getmembers():
            name = Path(member.name).name
            content = archive.extractfile(member) if name in RUN else None
            if content is not None:
                (PROVER / name).write_bytes(content.read())
    for name, wheel in WHEELS.items():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name]
        command += ["--only-binary=:all:", "--platform", PLATFORM, "--python-version", PYTHON]
        subprocess.run([*command, wheel], **quiet)  # type: ignore[call-overload]
        shutil.copy(next((folder / name).glob("*.whl")), PROVER / name)


def pack() -> None:
    """Write the modules of the package that a proof of a map may need, links followed."""
    with zipfile.ZipFile(PROVER / "primepar.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        folders = [ROOT / "primepar"]
        while folders:
            for path in sorted(folders.pop().iterdir()):
                if path.is_dir() and path.name not in LEFT_OUT:
                    folders.append(path)
                elif path.suffix == ".py":
                    archive.write(path, path.relative_to(ROOT))


if __name__ == "__main__":
    main()
