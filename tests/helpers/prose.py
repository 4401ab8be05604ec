"""What people read in a file: the prose of Markdown, and the comments and strings of Python."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

MARKDOWN = MarkdownIt("commonmark").enable("table")
# No sentence ends after these.
SHORT = {"e.g.", "i.e.", "al.", "vs.", "Fig.", "Eq.", "cf."}
TEXTS = ("COMMENT", "STRING", "FSTRING")
END = re.compile(r"(?<=[.!?])[\"')\]*_`]*\s+(?=[\"'(\[*_`]*[A-Z0-9`])")


@dataclass(frozen=True)
class Passage:
    """A piece of text, and the line of its file on which it starts."""

    line: int
    text: str


def paragraphs(text: str) -> list[str]:
    """Paragraphs and list items of Markdown, as they are read.

    Left out: code blocks (and with them all output), tables, headings, HTML, pictures, and the
    `:::` lines of mkdocstrings. A link counts by its words, code in a line by what is inside.
    """
    kept, tables, heading = [], 0, False
    for token in MARKDOWN.parse(text):
        tables += {"table_open": 1, "table_close": -1}.get(token.type, 0)
        heading = token.type == "heading_open" or (heading and token.type != "heading_close")
        if token.type == "inline" and not tables and not heading:
            words = shown(token.children or [])
            kept += [words] if words and not words.startswith(":::") else []
    return kept


def shown(tokens: list[Token]) -> str:
    """Return the words of a paragraph without its markup."""
    breaks = ("softbreak", "hardbreak")
    words = [" " if token.type in breaks else marked(token) for token in tokens if is_shown(token)]
    return "".join(words).strip()


def marked(token: Token) -> str:
    """Return the words of a token; code keeps its marks, since it may start a sentence."""
    return f"`{token.content}`" if token.type == "code_inline" else token.content


def is_shown(token: Token) -> bool:
    """Return whether a reader sees the token: a picture's caption and HTML are left out."""
    return token.type in ("text", "code_inline", "softbreak", "hardbreak")


def sentences(text: str) -> list[str]:
    """Split paragraphs into sentences; a paragraph or a list item ends one, a colon does not.

    >>> sentences("One block, e.g. `W`, moves. It is *sent*: once.")
    ['One block, e.g. `W`, moves.', 'It is sent: once.']
    """
    kept: list[str] = []
    for paragraph in paragraphs(text):
        start = 0
        for end in END.finditer(paragraph):
            if paragraph[: end.start()].split()[-1].lstrip("(") not in SHORT:
                kept.append(paragraph[start : end.start()].strip())
                start = end.end()
        kept.append(paragraph[start:].strip())
    return [sentence for sentence in kept if re.search(r"\w", sentence)]


def docstrings(source: str) -> list[str]:
    """Return the docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def outside_code(text: str) -> list[Passage]:
    """Return the lines of Markdown, code blocks blanked: their text is written by the code."""
    lines = text.splitlines()
    for token in MARKDOWN.parse(text):
        if token.type in ("fence", "code_block") and token.map:
            first, last = token.map
            lines[first:last] = [""] * (last - first)
    return [Passage(1, "\n".join(lines))]


def python_passages(source: str) -> list[Passage]:
    """Return comments and strings; neighbours that are read as one text are one passage."""
    passages: list[Passage] = []
    before, last = "", 0
    for token in tokens(source):
        kind = tokenize.tok_name[token.type].removesuffix("_MIDDLE")
        if kind in ("NL", "NEWLINE", "INDENT", "DEDENT"):
            continue
        if kind in TEXTS:
            text = bare(token.string)
            if kind == before and token.start[0] - last <= 1:
                passages[-1] = Passage(passages[-1].line, f"{passages[-1].text}\n{text}")
            else:
                passages.append(Passage(token.start[0], text))
        before, last = kind, token.end[0]
    return passages


def bare(text: str) -> str:
    """Return a comment without its sign, a string without its quotes."""
    return re.sub(r"^(?:#[!:]?\s*|\w{0,2}(\"{3}|'{3}|[\"']))|(?:\"{3}|'{3}|[\"'])$", "", text)


def names(source: str) -> Iterator[Passage]:
    """Yield every identifier of a Python source, where it is first."""
    seen = set[str]()
    for token in tokens(source):
        if token.type == tokenize.NAME and token.string not in seen:
            seen.add(token.string)
            yield Passage(token.start[0], token.string)


@lru_cache(maxsize=1)
def tokens(source: str) -> list[tokenize.TokenInfo]:
    """The tokens of a source; comments and names of one file are read in turn."""
    return list(tokenize.generate_tokens(io.StringIO(source).readline))


def data_names(source: str) -> Iterator[Passage]:
    """Yield the names that hold data: assigned, looped over, parameters and fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Passage(node.lineno, node.id)
        elif isinstance(node, ast.arg):
            yield Passage(node.lineno, node.arg)


def parts(name: str) -> list[str]:
    """Split an identifier into its words.

    >>> parts("HTTPReader_run2")
    ['HTTP', 'Reader', 'run']
    """
    return re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
