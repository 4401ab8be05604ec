"""Tutorials as notebooks: their cells, what these print, and their pictures inline.

    python -m docs.render_notebooks

writes out/notebooks/NN_name.ipynb, in the JSON of Jupyter's format 4.5, for all tutorials; with
numbers, `04 11`, only those. Every cell is run once, in a folder that is gone afterwards.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from docs.render_tutorials import PROSE, TUTORIALS, Ran, ran

OUT = Path("out/notebooks")
SHOWN = "from IPython.display import SVG, display"


def notebook(script: Path) -> dict[str, Any]:
    """Run a tutorial; returns its notebook, as JSON has it."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        cells = [cell_of(number, cell, Path(folder))
                 for number, cell in enumerate(ran(script, Path(folder)))]  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "cells": cells, "metadata": {"kernelspec": kernel}}


def cell_of(number: int, cell: Ran, folder: Path) -> dict[str, Any]:
    """One cell; a code cell also shows the pictures that it draws when a reader runs it again."""
    if cell.title == PROSE:
        return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {},
                "source": cell.text}  # fmt: skip
    outputs: list[dict[str, Any]] = []
    if cell.output:
        text = f"{cell.output}\n"
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    source = cell.text
    if cell.drawn:
        source += f"\n\n{SHOWN}"
    for picture in cell.drawn:
        source += f'\ndisplay(SVG("{picture.relative_to(folder)}"))'
        image = {"image/svg+xml": picture.read_text(encoding="utf-8")}
        outputs.append({"output_type": "display_data", "data": image, "metadata": {}})
    return {"cell_type": "code", "id": f"cell-{number}", "execution_count": None,
            "metadata": {}, "source": source, "outputs": outputs}  # fmt: skip


def main(numbers: list[str]) -> None:
    """Write the notebooks."""
    OUT.mkdir(parents=True, exist_ok=True)
    for script in sorted(TUTORIALS.glob("[0-9]*.py"))[1:]:
        if not numbers or script.name[:2] in numbers:
            path = OUT / f"{script.stem}.ipynb"
            path.write_text(json.dumps(notebook(script), indent=1) + "\n", encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
