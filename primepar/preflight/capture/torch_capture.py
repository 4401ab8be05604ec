"""Captures a script of torch: one recording for each rank."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from warnings import catch_warnings

from primepar.preflight.capture.runner import (
    Alone,
    Body,
    GivenValues,
    OtherValueError,
    RankLink,
    run_ranks,
)
from primepar.preflight.decisions import ScriptRecorder, other_values
from primepar.preflight.recording import RankRecording, Turns

_TRAINS = re.compile(rb"\b(nn|optim|backward)\b")
"""In a script whose ranks would each import torch._dynamo, at the first step of an optimizer."""
MOST_STARTS = 16
"""Recordings until a script that raises by unknown values is taken to raise."""


def capture_torch(
    script: Path,
    arguments: Sequence[str],
    ranks: int,
    limit: float,
    gpu: bool = True,
    shrink: bool = False,
) -> tuple[list[RankRecording], ScriptRecorder]:
    """Run a script once per rank, without communication; return what each rank did.

    The second value records it again, with decisions that go the other way. With `gpu` each rank
    finds a GPU that is not there; with `shrink` large tensors are not computed. The libraries that
    the script imports are imported here, once, so that `limit` seconds are those of the script.
    """
    import torch._subclasses.schema_check_mode
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.profiler._cupti_monitor
    import torch.testing
    import torch.utils.data

    from primepar.preflight.capture.pretended_gpu import constructors
    from primepar.preflight.capture.torch_script import importers, run_script
    from primepar.preflight.capture.uncomputed import install

    if shrink:
        import torch._meta_registrations  # noqa: F401

        install()
    import_libraries(script)
    importers.cache_clear()  # an earlier script may have imported less
    importers()
    constructors()

    started: dict[int, Turns] = {}
    before = GivenValues({}, set(), set())

    files = Path(tempfile.mkdtemp(prefix="preflight-"))

    def body(more: Mapping[int, Turns]) -> Body:
        folder = Path(tempfile.mkdtemp(dir=files))

        def run(rank: int, link: RankLink) -> RankRecording:
            turns = {**started.get(rank, {})}
            for identity, value in more.get(rank, {}).items():
                if identity in turns and value is None:
                    del turns[identity]
                else:
                    turns[identity] = value
            return run_script(script, arguments, rank, ranks, link, gpu, turns, folder, shrink)

        return run

    def alone(rank: int, turns: Turns) -> RankRecording | None:
        with suppress(OtherValueError):
            turned = body({rank: turns})
            return run_ranks(ranks, turned, limit, str(script), Alone(rank, before))[0]
        return None

    def together(turns: Mapping[int, Turns]) -> list[RankRecording]:
        return run_ranks(ranks, body(turns), limit, str(script))

    # Deleted when nobody can record again, at the latest at the end of this process.
    weakref.finalize(together, shutil.rmtree, files, ignore_errors=True)
    # `assert torch.allclose(summed, expected)` fails where the sum is not here. A script means to
    # go on: where it raised by an unknown value, it is recorded once more with the other one.
    for _ in range(MOST_STARTS):
        before.values.clear()
        before.asked.clear()
        before.given_up.clear()
        recorded = run_ranks(ranks, body({}), limit, str(script), given=before)
        raised = [(rank, of_rank.last) for rank, of_rank in enumerate(recorded) if of_rank.ended]
        turns = {rank: {last.lineage: next(other_values([last]), None)}
                 for rank, last in raised if last is not None}  # fmt: skip
        if not turns or any(turn.keys() & started.get(rank, {}) for rank, turn in turns.items()):
            break
        started |= {rank: {**started.get(rank, {}), **turn} for rank, turn in turns.items()}
    return recorded, ScriptRecorder(alone, together)


def import_libraries(script: Path) -> None:
    """Import what is installed of what a script, and its own modules next to it, import.

    What cannot be imported is left to the script, which may do without it.
    """
    ready, seen = [script], {script}
    quiet = io.StringIO()
    with redirect_stdout(quiet), redirect_stderr(quiet), catch_warnings(action="ignore"):
        while ready:
            file = ready.pop()
            with suppress(OSError):
                if _TRAINS.search(file.read_bytes()):
                    importlib.import_module("torch._dynamo")
            for module, names in _imports(file):
                top = script.parent / module.replace(".", "/")
                local = [
                    path for path in (top.with_suffix(".py"), top / "__init__.py") if path.is_file()
                ]
                ready += [path for path in local if path not in seen]
                seen.update(local)
                with suppress(Exception, SystemExit):
                    if not local and _installed(module.partition(".")[0]):
                        library = importlib.import_module(module)
                        for name in names:
                            getattr(library, name, None)  # libraries import many of theirs late


def _imports(file: Path) -> Iterator[tuple[str, list[str]]]:
    """The modules that a file imports, and the names that it takes from each."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, [alias.name for alias in node.names]


def _installed(name: str) -> bool:
    """Whether a package is installed, and not a module of the user or of Python."""
    spec = importlib.util.find_spec(name)
    origin = (spec.origin or "") if spec is not None else ""
    return "site-packages" in origin or "dist-packages" in origin
