"""Tutorials as pages of the site: every cell is run, and its output and pictures are below it.

Run by `make docs` before mkdocs. A tutorial that fails fails here, with its own traceback. The
pages and pictures go to docs/tutorials/, which is made anew each time and is not kept in git.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
MADE_FROM = PAGES / ".made-from"
"""Holds the fingerprint of the sources that the pages were made from."""
SOURCES = ("primepar", "reference", "verify", "tutorials", "docs/render_tutorials.py")
CELL = re.compile(r"^# %% ?(?P<title>[^\n]*)\n", flags=re.MULTILINE)
PROSE, QUESTION = "[markdown]", "[question]"
FOLDED = "<details markdown>\n<summary>{}</summary>\n\n{}\n\n</details>"
"""Text under a title that opens it, on a page and in a notebook."""
USER_CODE = re.compile(r"^# USER CODE BEGIN\n(.*?)^# USER CODE END\n", re.MULTILINE | re.DOTALL)


def cells(source: str) -> Iterator[tuple[str, int, str]]:
    """Cut a percent script into (title, line where it starts, text); prose has the title PROSE."""
    marks = list(CELL.finditer(source))
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    for mark, end in zip(marks, ends, strict=True):
        text = source[mark.end() : end].strip("\n")
        if mark["title"] == PROSE:
            text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        yield mark["title"], source.count("\n", 0, mark.end()), text


def folded(text: str) -> str:
    """A question as Markdown: its hint, and its answer with the code that checks it, folded.

    The cell is a comment with the paragraphs `Hint:` and `Answer:`, and then assertions.
    """
    comment = "\n".join(takewhile(lambda line: line.startswith("#"), text.splitlines()))
    asked = re.sub(r"^# ?", "", comment, flags=re.MULTILINE)
    question, hint, answer = re.split(r"\n\n(?:Hint|Answer): ", asked)
    check = f"```python\n{text.removeprefix(comment).strip()}\n```"
    parts = f"**Question.** {question}", FOLDED.format("Hint", hint)
    return "\n\n".join((*parts, FOLDED.format("Answer", f"{answer}\n\n{check}")))


def shown(title: str, code: str) -> str:
    """Return a code cell as Markdown, folded if it has a title."""
    block = f"```python\n{code}\n```"
    return f'??? quote "{title}"\n\n{indent(block, "    ")}' if title else block


class Ran(NamedTuple):
    """A cell of a tutorial, what it printed, and the pictures that it drew; prose has neither."""

    title: str
    text: str
    output: str = ""
    drawn: tuple[Path, ...] = ()


def ran(script: Path, folder: Path) -> Iterator[Ran]:
    """Run a tutorial in `folder`, where it draws, cell by cell; a question becomes prose."""
    names: dict[str, object] = {"__name__": "__main__", "__file__": str(script)}
    drawn: set[Path] = set()
    for title, line, text in cells(script.read_text(encoding="utf-8")):
        if title == PROSE:
            yield Ran(title, text)
            continue
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * line + text, str(script), "exec"), names)
        if title == QUESTION:
            title, text = PROSE, folded(text)
        new = sorted(set(folder.rglob("*.svg")) - drawn)
        drawn.update(new)
        yield Ran(title, text, printed.getvalue().rstrip(), tuple(new))


def render(script: Path, folder: Path) -> str:
    """Run a tutorial in `folder`, and return its page."""
    parts: list[str] = []
    for cell in ran(script, folder):
        parts.append(cell.text if cell.title == PROSE else shown(cell.title, cell.text))
        parts += [show(picture) for picture in cell.drawn]
        if cell.output:
            parts.append(f"```{{.text .output}}\n{cell.output}\n```")
    return described(parts) + "\n\n".join(parts) + "\n"


def described(parts: list[str]) -> str:
    """Front matter with the heading and the first sentence of a page, for search engines."""
    heading, _, prose = parts[0].partition("\n\n")
    sentence = re.split(r"(?<=[.?])\s", " ".join(prose.split()).replace("`", ""))[0]
    return f"---\ndescription: >-\n  {heading.lstrip('# ')}: {sentence}\n---\n\n"


def show(picture: Path) -> str:
    """Copy a picture next to the pages; return the line that shows it."""
    shutil.copy(picture, PAGES / picture.name)
    label = picture.stem.partition("_")[2].replace("_", " ")
    return f"![{label}]({picture.name}){{ .schedule }}"


def exercise(script: Path, solution: Path) -> str:
    """Return an exercise as the end of its tutorial's page, the solution folded."""
    parts = [
        text if title == PROSE else shown(title, text)
        for title, _, text in cells(script.read_text(encoding="utf-8"))
    ]
    answer = USER_CODE.search(solution.read_text(encoding="utf-8"))
    assert answer is not None, f"{solution} has no region of user code"
    parts.append(shown("One solution", answer[1].strip("\n")))
    where = script.relative_to(ROOT)
    parts.append(f"The exercise is `{where}`; `python {where}` checks what you wrote.")
    return "\n\n".join(parts) + "\n"


def fingerprint() -> str:
    """A hash of the interpreter and of all files that a tutorial runs or reads."""
    digest = sha256(sys.version.encode())
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def is_made() -> bool:
    """Whether all pages were made, by these sources as they are now."""
    return MADE_FROM.is_file() and MADE_FROM.read_text(encoding="utf-8") == fingerprint()


def main() -> None:
    """Write the page of every numbered tutorial that has an exercise, unless it is there."""
    if is_made():
        print("the pages of the tutorials are those of these sources", file=sys.stderr)
        return
    sources = fingerprint()
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir()
    os.environ["COLUMNS"] = "100"
    for task in sorted((TUTORIALS / "exercises").glob("[0-9]*.py")):
        (script,) = TUTORIALS.glob(f"{task.name[:2]}_*.py")
        (solution,) = (TUTORIALS / "exercises" / "solutions").glob(f"{task.name[:2]}_*.py")
        print(f"running {script.relative_to(ROOT)}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            page = render(script, Path(folder)) + "\n" + exercise(task, solution)
        (PAGES / f"{script.stem}.md").write_text(page, encoding="utf-8")
    MADE_FROM.write_text(sources, encoding="utf-8")


if __name__ == "__main__":
    main()
