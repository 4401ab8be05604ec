"""The body of `primepar tokenize`: from texts to a file of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from primepar.distributed.text.documents import Documents
from primepar.distributed.text.token_file import (
    SUFFIX,
    TokenHeader,
    TokenizerIdentity,
    side_file,
)
from primepar.distributed.text.tokenizer import (
    check_installed,
    digest_of,
    end_of_text,
    entries,
    read_tokenizer,
    tokenizer_json,
    trained_tokenizer,
    unknown_token,
)
from primepar.distributed.text.write_tokens import TOKENIZER, Encoder, write_tokens
from primepar.errors import DataError
from primepar.files import announce
from primepar.reading import read_bytes

Report = Callable[[str, int, int], None]
"""Called with what is under way, the bytes of text done since the last call, and all bytes."""


@dataclass(frozen=True, kw_only=True)
class TokenizeOptions:
    """What `primepar tokenize` is asked for; raises `DataError` where it does not fit together."""

    texts: Sequence[Path]
    output: Path
    tokenizer: Path | None = None
    train_vocabulary: int | None = None
    end_of_text: str | None = None
    held_out: float = 0.1
    pattern: str = "*"
    force: bool = False

    def __post_init__(self) -> None:
        if (self.tokenizer is None) == (self.train_vocabulary is None):
            got = "neither" if self.tokenizer is None else "both"
            raise DataError(
                "tokenize: expected either --tokenizer tokenizer.json or --train-vocabulary N, "
                f"got {got}"
            )
        if not 0 < self.held_out < 1:
            raise DataError(
                f"--held-out: expected a share between 0 and 1, got {self.held_out}: take 0.1"
            )
        if self.end_of_text is not None and self.tokenizer is None:
            raise DataError(
                "--end-of-text: expected none together with --train-vocabulary, whose tokenizer "
                f"has one, got {self.end_of_text!r}: leave it out"
            )
        self._check_output()

    def _check_output(self) -> None:
        if self.output.suffix != SUFFIX:
            raise DataError(
                f"-o {self.output}: expected a name that ends with {SUFFIX}, got "
                f"{self.output.name}: write -o {self.output.with_suffix(SUFFIX)}"
            )
        if not self.output.parent.is_dir():
            raise DataError(
                f"-o {self.output}: expected a folder that is there, got {self.output.parent}: "
                "make it first"
            )
        old = next((path for path in self.written if path.exists()), None)
        if old is not None and not self.force:
            raise DataError(
                f"{old}: expected no such file, got one: give another -o, or add --force to "
                "overwrite it"
            )
        for path in self.written[1:]:  # the first is that of the command's option
            announce(path)

    @property
    def written(self) -> list[Path]:
        """The files that are written."""
        trained = [] if self.train_vocabulary is None else [self.output.with_name(TOKENIZER)]
        return [self.output, side_file(self.output), *trained]


def tokenize(options: TokenizeOptions, report: Report) -> TokenHeader:
    """Write tokens, their side file, and the tokenizer if it is trained.

    Returns the content of the side file. Raises `DataError`.
    """
    check_installed()
    given = None if options.tokenizer is None else read_tokenizer(options.tokenizer)
    documents = Documents.of(options.texts, options.pattern, options.held_out, options.written)
    if given is None:
        assert options.train_vocabulary is not None
        given = trained_tokenizer(_for_training(documents, report), options.train_vocabulary)
        content = tokenizer_json(given)
        file = TOKENIZER
    else:
        assert options.tokenizer is not None
        content = read_bytes(options.tokenizer)
        near = options.tokenizer.parent.resolve() == options.output.parent.resolve()
        file = options.tokenizer.name if near else str(options.tokenizer.resolve())
    encoder = Encoder(
        given,
        entries(given),
        end_of_text(given, options.end_of_text),
        unknown_token(given),
        TokenizerIdentity(file, digest_of(content)),
    )
    return write_tokens(
        documents,
        encoder,
        options.output,
        lambda done: report("tokens", done, documents.size),
        content if options.tokenizer is None else None,
    )


def _for_training(documents: Documents, report: Report) -> Iterator[str]:
    """Yield the text without what is held out: no tokenizer is trained on that."""
    for piece in documents.pieces():
        if not piece.held_out:
            yield piece.text
        report("tokenizer", piece.size, documents.size)
