"""Notebooks have the cells of their tutorials, what these print, and pictures; they run again."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from profiles import few

from docs.render_notebooks import OUT, SHOWN, main
from docs.render_tutorials import PROSE, QUESTION, TUTORIALS, cells, folded

QUICK = sorted(TUTORIALS.glob("0[28]*.py"))
"""The first and the last of the table, as `make test` runs these two."""
OTHERS = [path for path in sorted(TUTORIALS.glob("[0-9]*.py"))[1:] if path not in QUICK]


@few
@pytest.mark.parametrize(
    "script", [QUICK[0], *OTHERS, QUICK[1]], ids=lambda path: str(getattr(path, "stem", path))
)
def test_a_notebook_is_the_tutorial_and_its_cells_run(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main([script.name[:2]])
    made = json.loads((OUT / f"{script.stem}.ipynb").read_text(encoding="utf-8"))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    source = [(title in (PROSE, QUESTION), folded(text) if title == QUESTION else text)
              for title, _, text in cells(script.read_text("utf-8"))]  # fmt: skip
    copied = [(cell["cell_type"] == "markdown", cell["source"].partition(f"\n\n{SHOWN}")[0])
              for cell in made["cells"]]  # fmt: skip
    assert copied == source
    assert len({cell["id"] for cell in made["cells"]}) == len(source)

    drawn: list[str] = []
    display: Any = ModuleType("IPython.display")
    display.SVG, display.display = lambda name: Path(name).read_text("utf-8"), drawn.append
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    names: dict[str, Any] = {"__name__": "__main__"}
    kept = []
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(cell["source"], cell["id"], "exec"), names)
            texts = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream"]
            assert bool(printed.getvalue()) == bool(texts)
            kept += [out["data"]["image/svg+xml"] for out in cell["outputs"]
                     if out["output_type"] == "display_data"]  # fmt: skip
    assert kept == drawn != []
