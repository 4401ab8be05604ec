"""The tests that need a GPU, on a machine that has torch and no registry: `make gpu`.

Runs with any Python that has torch with CUDA, and installs nothing into it. Packages that it lacks
are taken from the folder `wheels/`, which `make wheels` fills on another machine. `--cpu` runs the
same cases on CPUs. Each part is a run of pytest with a time limit, and its results are written as
it ends: a part that hangs costs its own limit, not the lent machine. Names of parts select some.
Uses the standard library alone, until all is there.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "wheels"
OUT = ROOT / "out" / "gpu"
SITE = OUT / "site"
"""Where packages from `wheels/` are installed: they are seen by this command alone."""
PACKAGES = {
    "hypothesis": "hypothesis", "msgspec": "msgspec", "networkx": "networkx", "numpy": "numpy",
    "pytest": "pytest", "rich": "rich", "safetensors": "safetensors", "scipy": "scipy",
    "typer": "typer", "z3": "z3-solver",
}  # fmt: skip
"""Import name -> the package that the tests need."""
PARTS: dict[str, tuple[float, tuple[str, ...]]] = {
    "one_process": (120, (
        "test_gpu_blocks", "test_gpu_waits", "test_limited_training", "test_stream_k_kernel")),
    "smoke": (90, ("test_gpu_smoke",)),
    "memory": (150, ("test_gpu_memory",)),
    "pipelines": (120, ("test_gpu_pipelines",)),
    "linear": (150, ("test_gpu_linear",)),
    "models": (150, ("test_gpu_models",)),
    "trainer": (150, ("test_gpu_trainer",)),
    "failures": (150, ("test_gpu_failures",)),
    "speed": (90, ("test_gpu_speed",)),
}  # fmt: skip
"""Part -> its limit in seconds, and its files: what needs least comes first."""
ENVIRONMENT = {
    "PRIMEPAR_GPU_SUITE": "1", "OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}  # fmt: skip
"""The last: the server that forks ranks asks whether there is a GPU, and must not start CUDA."""
CARRIED = "PRIMEPAR_TEST_ANSWERS"
"""Variable with the folder of answers that are carried along."""
USAGE, WITHOUT_CASES, TIMED_OUT = 2, 5, 124
Row = tuple[str, int, int, int, float]
"""A file of tests: passed, failed, skipped, and seconds."""
Part = dict[str, Any]
"""One part as it is kept in a JSON file: `rows`, what was `measured`, and its exit `code`."""


class MissingError(Exception):
    """What this machine lacks, in one line."""


def main(words: Sequence[str]) -> int:
    """Check what is there, install what is carried along, run pytest, and print a table."""
    on_cpu = "--cpu" in words
    try:
        check_python(sys.version_info[:2])
        install(missing())
        if not on_cpu:
            check_gpu()
    except MissingError as error:
        print(f"gpu: error: {error}", file=sys.stderr)
        return USAGE
    ENVIRONMENT[CARRIED] = str(answers(on_cpu))
    named = [word for word in words if word in PARTS]
    more = [word for word in words if word != "--cpu" and word not in PARTS]
    kept = [_run_part(part, on_cpu, more) for part in named or PARTS]
    print(table(kept, machine()))
    return max(int(part["code"]) for part in kept)


def check_python(version: Sequence[int]) -> None:
    """Raise `MissingError` for a Python that is too old."""
    if tuple(version[:2]) < (3, 11):
        raise MissingError(
            f"expected Python 3.11 or newer, got {version[0]}.{version[1]}: name another one, "
            "make gpu PYTHON=python3.12"
        )


def missing(is_there: Callable[[str], bool] | None = None) -> list[str]:
    """Return the packages that this Python lacks. Raises `MissingError` without torch."""
    sys.path.append(str(SITE))
    is_there = is_there or (lambda name: find_spec(name) is not None)
    if not is_there("torch"):
        raise MissingError(
            f"expected torch in {sys.executable}, found none: name a Python that has it, "
            "make gpu PYTHON=.venv/bin/python after make demo"
        )
    return [package for name, package in PACKAGES.items() if not is_there(name)]


def install(packages: Sequence[str]) -> None:
    """Install packages from `wheels/` for this command. Raises `MissingError` if one is not there.

    No dependency is fetched: those of the packages are packages above, or are in torch's image.
    """
    if not packages:
        return
    names, version = " ".join(packages), platform.python_version_tuple()
    advice = (
        f"run make wheels FOR={version[0]}.{version[1]} NAMES='{names}' where there is a registry, "
        "and copy the folder wheels/ here"
    )
    if not WHEELS.is_dir():
        raise MissingError(f"expected {names} in {sys.executable}, found none: {advice}")
    words = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
    words += ["--find-links", str(WHEELS), "--target", str(SITE), *packages]
    environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_FIND_LINKS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise MissingError(f"expected wheels of {names} in {WHEELS}, got others: {advice}")


def answers(anew: bool) -> Path:
    """Return the folder of what gloo answers and of lowered programs, `anew` an empty one.

    A run on CPUs fills it. Copied with the checkout it saves the lent machine these minutes.
    """
    sys.path.append(str(ROOT))
    from primepar.files import digest_of_code

    folder = OUT / f"answers-{digest_of_code().hex()[:12]}"
    for old in OUT.glob("answers-*"):
        if anew or old != folder:
            shutil.rmtree(old)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_gpu() -> None:
    """Raise `MissingError` if torch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise MissingError(
            f"expected a GPU that torch {torch.__version__} can use, found none: look at "
            "nvidia-smi, or run the same cases on CPUs with make gpu ON=--cpu"
        )


def _run_part(part: str, on_cpu: bool, more: Sequence[str]) -> Part:
    """Run pytest on the files of a part, and write its log and its results."""
    limit, files = PARTS[part]
    results, kept = OUT / f"{part}.xml", OUT / f"{part}.json"
    OUT.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    tests = [str(ROOT / "tests" / "distributed" / f"{name}.py") for name in files]
    words = ["-m", "not gpu" if on_cpu else "gpu", "-v", "--durations=5", f"--junitxml={results}"]
    paths = os.pathsep.join(filter(None, [str(ROOT), str(SITE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": paths}
    environment.pop("NCCL_DEBUG", None)  # what it prints on stderr is no message of primepar
    line = [sys.executable, "-m", "pytest", *words, *tests, *more]
    print(f"{part}: at most {limit:.0f} s", flush=True)
    begin = time.monotonic()
    with (OUT / f"{part}.log").open("w") as log:
        running = subprocess.Popen(
            line, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = running.wait(limit)
            if on_cpu and code == WITHOUT_CASES:
                code = 0  # the linear operators are tested on CPUs by other files
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    seconds = time.monotonic() - begin
    done: Part = {"part": part, "code": code, "seconds": seconds, "rows": [], "measured": []}
    if results.exists():
        done |= {"rows": rows(results), "measured": measured(results)}
    kept.write_text(json.dumps(done, indent=1))
    print(f"{part}: {seconds:.0f} s, exit code {code}, see {OUT / part}.log", flush=True)
    return done


def rows(results: Path) -> list[Row]:
    """Return the counts of every file in pytest's XML."""
    counts: dict[str, Counter[str]] = {}
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        name = case.get("classname", "").rpartition(".")[2]
        states = {child.tag for child in case}
        failed = states & {"failure", "error"}
        state = "failed" if failed else "skipped" if "skipped" in states else "passed"
        counts.setdefault(name, Counter())[state] += 1
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time", "0"))
    return [
        (name, count["passed"], count["failed"], count["skipped"], seconds[name])
        for name, count in sorted(counts.items())
    ]


def measured(results: Path) -> list[str]:
    """Return what tests measured and noted in pytest's XML."""
    properties = ElementTree.parse(results).iter("property")
    return [f"{noted.get('name')}: {noted.get('value')}" for noted in properties]


def table(parts: Sequence[Part], where: str) -> str:
    """Return the results as the table of docs/gpu.md, with the date and the machine."""
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {where}", "",
        "| file | passed | failed | skipped | seconds |", "|---|---|---|---|---|",
    ]  # fmt: skip
    noted = []
    for part in parts:
        lines += [
            f"| {name} | {passed} | {failed} | {skipped} | {seconds:.0f} |"
            for name, passed, failed, skipped, seconds in part["rows"]
        ]
        noted += part["measured"]
        if part["code"] == TIMED_OUT:
            noted.append(f"{part['part']}: did not end within {PARTS[part['part']][0]:.0f} s")
    return "\n".join([*lines, *(("", *noted) if noted else ())])


def machine() -> str:
    """Return the versions, and the GPU if there is one."""
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    if not torch.cuda.is_available():
        return f"CPU, {versions}"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return f"{torch.cuda.get_device_name()}, {versions}, NCCL {nccl}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
