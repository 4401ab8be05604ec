"""`primepar tokenize`: make a file of tokens of texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.commands.options import JsonOption, json_text
from primepar.commands.progress import byte_progress

if TYPE_CHECKING:
    from primepar.distributed.text.token_file import TokenHeader


def tokenize(
    texts: Annotated[
        list[Path],
        typer.Argument(metavar="TEXT...", help="Files of UTF-8, or folders.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="TOKENS.BIN",
            help="Write the tokens here, and TOKENS.BIN.json next to them.",
            show_default=False,
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="TOKENIZER.JSON", help="A tokenizer that exists.", show_default=False),
    ] = None,
    train_vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train byte-level BPE with N entries on the text, and write tokenizer.json too.",
            show_default=False,
        ),
    ] = None,
    end_of_text: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="With --tokenizer: the token after each document.",
            show_default="a well-known one",
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the text's end to hold out.")
    ] = 0.1,
    pattern: Annotated[
        str, typer.Option(metavar="GLOB", help="Which files of folders are texts, like '*.txt'.")
    ] = "*",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a file of tokens of texts, for `primepar train --data`.

    Each file is a document. The tokenizer is one that exists, as a model's, or is trained on the
    text without what is held out. It needs the extra `text`.
    """  # fmt: skip
    from primepar.distributed.text.tokenize import TokenizeOptions
    from primepar.distributed.text.tokenize import tokenize as run

    options = TokenizeOptions(
        texts=texts,
        output=output,
        tokenizer=tokenizer,
        train_vocabulary=train_vocabulary,
        end_of_text=end_of_text,
        held_out=held_out,
        pattern=pattern,
        force=force,
    )
    with byte_progress() as report:
        header = run(options, report)
    typer.echo(json_text(header) if as_json else summary(output, header), nl=False)


def summary(output: Path, header: TokenHeader) -> str:
    """What was written, in two lines, and a third for what the tokenizer does not know."""
    held, documents = header.held_out, header.sources.documents
    per_token = (header.train.bytes + held.bytes) / header.tokens
    unknown = (
        ""
        if header.unknown == 0
        else (
            f"{header.unknown} tokens are unknown to the tokenizer: bits per byte leave them out\n"
        )
    )
    return (
        f"{output}: {header.tokens} tokens of {header.dtype}, {per_token:.2f} bytes each, of "
        f"{documents} document{'s' * (documents != 1)}; {held.tokens} tokens are held out\n"
        f"vocabulary of {header.vocabulary}, {header.tokenizer.file}; "
        f"train with primepar train --data {output}\n"
        f"{unknown}"
    )
