"""README and docs stay readable: their sentences are counted by `readability.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import docstrings, sentences
from readability import Count, main, pages, sentences_of

ROOT = Path(__file__).resolve().parents[2]
# Pages that keep the limits each by itself. A page that has been revised is added here.
REVISED: tuple[str, ...] = (
    "CONTRIBUTING.md",
    "docs/api.md",
    "docs/executor.md",
    "docs/glossary.md",
    "docs/idea.md",
    "docs/nano.md",
    "docs/notation.md",
    "docs/operators.md",
    "docs/planner.md",
    "docs/plans.md",
    "docs/primitives.md",
    "docs/program-format.md",
    "docs/proofs.md",
    "docs/reproduction.md",
    "docs/rules.md",
    "docs/simulator.md",
    "docs/training.md",
    "docs/training-data.md",
    "docs/training-launch.md",
    "docs/training-memory.md",
    "docs/troubleshooting.md",
    "docs/what-a-proof-guarantees.md",
)


@pytest.mark.parametrize("name", REVISED)
def test_a_page_is_readable(name: str) -> None:
    count = Count.of(sentences_of(ROOT / name))
    assert count.lengths
    assert count.mean <= 17
    assert count.long < 0.03


def test_all_pages_together_are_readable() -> None:
    count = Count.of([sentence for page in pages() for sentence in sentences_of(page)])
    assert count.mean <= 17
    assert count.long < 0.03


def test_code_tables_headings_and_pictures_are_not_counted() -> None:
    text = (
        "# A heading. Two.\n\nOne *word*. See [two words](x.md).\n\n- item one\n- `a b` item\n\n"
        "| a | b |\n|---|---|\n| c. | d. |\n\n```text\nOutput. Two.\n```\n\n![Picture.](p.svg)"
    )
    assert sentences(text) == ["One word.", "See two words.", "item one", "`a b` item"]


def test_sentences_end_at_stops_not_at_colons_or_abbreviations() -> None:
    text = "It moves: once; e.g. `W`, by Wang et al. In a step? In one step. Yes.\n\n3.5 is less"
    assert sentences(text) == [
        "It moves: once; e.g. `W`, by Wang et al. In a step?",
        "In one step.",
        "Yes.",
        "3.5 is less",
    ]


def test_mean_and_share_of_long_sentences() -> None:
    count = Count.of(["a b c", "word " * 36, "word " * 35])
    assert (count.lengths, count.long) == ((3, 36, 35), 1 / 3)
    assert count.mean == pytest.approx(74 / 3)


def test_the_docstrings_of_python_are_read() -> None:
    assert docstrings('"""One."""\ndef f():\n    """Two.\n\n    Three.\n    """\n') == [
        "One.",
        "Two.\n\nThree.",
    ]


def test_the_table_has_a_line_per_file_and_one_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("One two. " + "Word " * 35 + "end.\n")
    main([str(page), "--long"])
    head, row, long, every = capsys.readouterr().out.splitlines()
    assert head == "sentences   mean words   above 35   file"
    assert row == f"        2         19.0      50.0%   {page}"
    assert long.startswith("    36 words: Word Word")
    assert every == "        2         19.0      50.0%   all"
    assert ROOT / "README.md" in pages()
