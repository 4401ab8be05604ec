"""Words that must not come back (words.toml), in what people read and in names.

`python tests/house/test_words.py PATH ...` prints every hit of files or folders, with advice.
`--names` adds the names that hold data without showing what (`found`, `own`, `each`, `at`),
`--blocks` the code blocks of pages: what a command prints there is written by the code.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from prose import Passage, data_names, names, outside_code, parts, python_passages

ROOT = Path(__file__).resolve().parents[2]
LIST = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
# Places without banned words: everything.
CLEAN: tuple[str, ...] = (".",)
# Places where, in addition, no name that holds data is vague.
CLEAN_NAMES: tuple[str, ...] = (
    "benchmarks",
    "docs",
    "primepar",
    "reference",
    "tutorials",
    "verify",
    "tests/models",
    "tests/pictures",
)
CLEAN_BLOCKS: tuple[str, ...] = ()
# These hold the banned words as data.
EXCEPT = ("tests/house/words.toml", "tests/house/test_words.py")
READ = {".md", ".py", ".toml", ".yml", ".yaml", ".cff", ".css", ".txt"}


@dataclass(frozen=True)
class Rule:
    """Words that are banned, and what to write instead."""

    pattern: re.Pattern[str]
    write: str
    names: bool


RULES = [
    Rule(
        # Blanks of a phrase also match a line break.
        re.compile(rf"\b(?:{'|'.join(rule['words'])})\b".replace(" ", r"\s+"), re.IGNORECASE),
        rule["write"],
        rule.get("names", False),
    )
    for rule in LIST["banned"]
]


NAME = re.compile(r"[A-Za-z_]\w*")
# Followed by a sign or by `in`, as a name is that holds data.
VAGUE = re.compile(
    rf"\b(?:{'|'.join(LIST['vague']['names'])})(?:\s*[^\w\s.]|\s+in\b|\s*$)", re.MULTILINE
)
# A whole file without these has none in a passage either: a phrase may go on in the next string. It
# is searched in lower case: a pattern that ignores case takes five times as long.
GAP = r"(?:\W|\b[rbfu]{1,2}(?=[\"']))+"
BANNED = "|".join(word for rule in LIST["banned"] for word in rule["words"])
ANY = re.compile(rf"\b(?:{BANNED})\b".replace(" ", GAP))


@dataclass(frozen=True)
class Hit:
    """One banned word: where, what, and what to write instead."""

    path: str
    line: int
    word: str
    write: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: `{self.word}`; write: {self.write}"


def hits(path: str, text: str, *, vague: bool = False, blocks: bool = False) -> list[Hit]:
    """Return the banned words of a text, read as the kind of file that `path` names."""
    python, kept = path.endswith(".py"), list[Hit]()
    if ANY.search(text.lower()) or (python and any(map(is_banned, set(NAME.findall(text))))):
        others = {} if blocks else {".md": outside_code}
        read = ({".py": python_passages} | others).get(Path(path).suffix)
        passages = read(text) if read else [Passage(1, text)]
        kept += [hit for passage in passages for hit in in_passage(path, passage)]
        if python:
            kept += [hit for name in names(text) for hit in in_name(path, name)]
    if python and vague:
        kept += list(vague_names(path, text))
    return sorted(set(kept), key=lambda hit: (hit.path, hit.line, hit.word))


def in_passage(path: str, passage: Passage) -> Iterator[Hit]:
    """Yield the banned words of a comment, a string or a page."""
    for rule in RULES:
        for match in rule.pattern.finditer(passage.text):
            line = passage.line + passage.text.count("\n", 0, match.start())
            yield Hit(path, line, " ".join(match[0].split()), rule.write)


def in_name(path: str, name: Passage) -> Iterator[Hit]:
    """Yield the banned words of an identifier."""
    for rule in is_banned(name.text):
        yield Hit(path, name.line, name.text, rule.write)


@cache
def is_banned(name: str) -> tuple[Rule, ...]:
    """Return the rules that an identifier breaks."""
    return tuple(
        rule
        for word in parts(name)
        for rule in RULES
        if rule.names and rule.pattern.fullmatch(word)
    )


def vague_names(path: str, text: str) -> Iterator[Hit]:
    """Yield the names of data that do not show what they hold."""
    if not VAGUE.search(text):
        return
    for name in data_names(text):
        if name.text in LIST["vague"]["names"]:
            yield Hit(path, name.line, name.text, LIST["vague"]["write"])


def kept_files(paths: list[str]) -> list[str]:
    """Return the files of the repository under `paths`, without links and without the list."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [name for name in listed.stdout.split("\0") if name and name not in EXCEPT]
    return sorted({name for name in files if is_read(ROOT / name)})


def is_read(path: Path) -> bool:
    """Return whether a file holds text for people."""
    kind = path.suffix in READ or path.name == "Makefile"
    return kind and path.is_file() and not path.is_symlink()


def all_hits(paths: list[str], *, vague: bool = False, blocks: bool = False) -> list[Hit]:
    """Return the banned words of files and folders of the repository."""
    return [
        hit
        for name in kept_files(paths)
        for hit in hits(name, (ROOT / name).read_text(encoding="utf-8"), vague=vague, blocks=blocks)
    ]


def test_no_banned_word_is_in_a_cleaned_place() -> None:
    assert [str(hit) for hit in (all_hits(list(CLEAN)) if CLEAN else [])] == []


def test_no_vague_name_is_in_a_cleaned_place() -> None:
    files = [name for name in kept_files(list(CLEAN_NAMES)) if name.endswith(".py")]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in files}
    assert [str(hit) for name in files for hit in vague_names(name, texts[name])] == []


def test_no_banned_word_is_in_a_cleaned_code_block() -> None:
    places = list(CLEAN_BLOCKS)
    assert [str(hit) for hit in (all_hits(places, blocks=True) if places else [])] == []


def test_every_cleaned_place_exists() -> None:
    assert [
        place for place in (*CLEAN, *CLEAN_NAMES, *CLEAN_BLOCKS) if not kept_files([place])
    ] == []


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        ("a.md", "The block\nlies there.\n\nIt is\nfor\never so.\n", [2, 5]),
        ("a.md", "# Mended\n\n| told |\n|---|\n\n```text\nhe said so\n```\n", [1, 3]),
        ("a.py", '"""One.\n\nThe block lies there.\n"""\n', [3]),
        ("a.py", "# Both are sent by\n# turns.\nx = 1\n", [1]),
        ("a.py", 'print(\n    "as so "\n    f"many {1}"\n)\n', [2]),
        ("a.py", 'print("none of so", "many")\n', []),
        ("a.py", "def tell_rank(mended: int) -> None: ...\n", [1, 1]),
        ("a.py", "class ReadyPlanTold: ...\n", [1]),
        ("a.py", "y = 'M stands for the rows'  # applies, believes, outlies\n", []),
        ("a.toml", "# what it wants\n", [1]),
    ],
)
def test_a_banned_word_is_seen_on_its_line(path: str, text: str, lines: list[int]) -> None:
    assert [hit.line for hit in hits(path, text)] == lines


def test_a_banned_word_in_a_code_block_is_seen_when_it_is_asked_for() -> None:
    text = "Prose.\n\n```text\nhe said so\n```\n"
    assert hits("a.md", text) == []
    assert [hit.line for hit in hits("a.md", text, blocks=True)] == [4]


def test_a_hit_names_the_place_the_word_and_what_to_write() -> None:
    (hit,) = hits("a.py", "# the work owed\n")
    assert str(hit) == "a.py:1: `owed`; write: obligations, outstanding"


def test_a_vague_name_is_seen_where_it_holds_data_only() -> None:
    text = "for each in own: pass\ndef f(at): ...\nclass A:\n    found: int\nx = y.at(own)\n"
    assert [(hit.line, hit.word) for hit in hits("a.py", text, vague=True)] == [
        (1, "each"), (2, "at"), (4, "found"),
    ]  # fmt: skip
    assert hits("a.py", text) == []


if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if word not in ("--names", "--blocks")] or ["."]
    seen = all_hits(named, vague="--names" in sys.argv, blocks="--blocks" in sys.argv)
    print(*seen, f"{len(seen)} hits", sep="\n")
    sys.exit(bool(seen))
