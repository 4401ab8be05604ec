"""Captures a script of torch: one recording for each rank."""

from __future__ import annotations

import ast
import importlib.util
import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from warnings import catch_warnings

from primepar.preflight.capture.rank_link import RankLink
from primepar.preflight.capture.runner import run_ranks
from primepar.preflight.recording import RankRecording


def capture_torch(
    script: Path, arguments: Sequence[str], ranks: int, limit: float, gpu: bool = True
) -> list[RankRecording]:
    """Run a script once per rank, without communication, and return what each rank did.

    With `gpu` each rank finds a GPU that is not there. The libraries that the script imports are
    imported here, once, so that `limit` seconds are those of the script itself.
    """
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel
    import torch.testing
    import torch.utils.data  # noqa: F401

    from primepar.preflight.capture.torch_script import run_script

    import_libraries(script)

    def body(rank: int, link: RankLink) -> RankRecording:
        return run_script(script, arguments, rank, ranks, link, gpu)

    return run_ranks(ranks, body, limit, script=str(script))


def import_libraries(script: Path) -> None:
    """Import what is installed of what a script, and its own modules next to it, import.

    What cannot be imported is left to the script, which may do without it.
    """
    ready, seen = [script], {script}
    quiet = io.StringIO()
    with redirect_stdout(quiet), redirect_stderr(quiet), catch_warnings(action="ignore"):
        while ready:
            for module, names in _imports(ready.pop()):
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
