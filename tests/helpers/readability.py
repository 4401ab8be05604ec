"""Count sentences: `python tests/helpers/readability.py [PATH ...]`, by default of README and docs.

Counted: paragraphs and list items of Markdown; of Python files the docstrings. Not counted: code
blocks (and so all output), tables, headings, HTML and pictures. A sentence ends at `.`, `!` or `?`
before a capital, a digit or code, and at the end of its paragraph or list item; a colon or a
semicolon ends none. Words are what blanks separate, also inside code in a line.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from prose import docstrings, sentences

ROOT = Path(__file__).resolve().parents[2]
LONG = 35


@dataclass(frozen=True)
class Count:
    """Lengths of sentences, in words."""

    lengths: tuple[int, ...]

    @classmethod
    def of(cls, kept: list[str]) -> Count:
        """Count the words of each sentence."""
        return cls(tuple(len(sentence.split()) for sentence in kept))

    @property
    def mean(self) -> float:
        """Words in a sentence, on average."""
        return sum(self.lengths) / max(1, len(self.lengths))

    @property
    def long(self) -> float:
        """The share of sentences with more than 35 words."""
        return sum(length > LONG for length in self.lengths) / max(1, len(self.lengths))


def pages() -> list[Path]:
    """Return README, CONTRIBUTING, CHANGELOG and the pages of docs."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def files(paths: list[str]) -> list[Path]:
    """Return the files that are named, and those in the folders that are named."""
    kept = [Path(path) for path in paths]
    inside = [
        file
        for path in kept
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.suffix in (".md", ".py")
    ]
    return inside or pages()


def sentences_of(path: Path) -> list[str]:
    """Return the sentences of a page, or of the docstrings of a Python file."""
    text = path.read_text(encoding="utf-8")
    prose = docstrings(text) if path.suffix == ".py" else [text]
    return [sentence for part in prose for sentence in sentences(part)]


def main(arguments: list[str]) -> None:
    """Print a line per file and one for all; `--long` prints each long sentence too."""
    everything: list[str] = []
    print("sentences   mean words   above 35   file")
    for path in files([word for word in arguments if word != "--long"]):
        kept = sentences_of(path)
        everything += kept
        print(line(kept, str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)))
        if "--long" in arguments:
            for sentence in kept:
                if (length := len(sentence.split())) > LONG:
                    print(f"    {length} words: {sentence}")
    print(line(everything, "all"))


def line(kept: list[str], name: str) -> str:
    """Return one line of the table."""
    count = Count.of(kept)
    return f"{len(kept):9}   {count.mean:10.1f}   {count.long:8.1%}   {name}"


if __name__ == "__main__":
    main(sys.argv[1:])
