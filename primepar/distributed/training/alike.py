"""What must be the same on all ranks of a run, and the line that names the ranks that differ.

Every rank leaves its facts in the store that all share, before they start torch.distributed: ranks
with other settings could wait for one another without end. Rank 0 compares them. Paths may differ,
as machines do: what the files contain is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from operator import itemgetter

import msgspec

from primepar import __version__
from primepar.distributed.training.data import Text
from primepar.distributed.training.settings import Settings, key_of
from primepar.files import digest_of_code
from primepar.partition.primitive_file import files_of
from primepar.plan import Plan
from primepar.reading import read_bytes

Facts = Mapping[str, str]
PATHS = (
    "plan", "data", "tokenizer", "log", "trace", "checkpoint", "weights", "save_weights",
    "tensorboard",
)  # fmt: skip
"""Settings that are paths: ranks may have other ones, but all or none."""
DIGITS = 8
"""Length of a digest in messages."""


def facts_of(settings: Settings, plan: Plan, text: Text) -> dict[str, str]:
    """Return what the ranks of a run compare: settings, and digests of plan, text and code."""
    import torch

    facts = {
        key_of(name): in_words(value is not None if name in PATHS else value)
        for name, value in msgspec.structs.asdict(settings).items()
    }
    facts["plan"] = sha256(msgspec.json.encode(plan)).hexdigest()[:DIGITS]
    files = sorted({file for sequence in plan.sequences.values() for file in files_of(sequence)})
    content = b"".join(read_bytes(file) for file in files)
    facts["primitives"] = sha256(content).hexdigest()[:DIGITS] if files else "none"
    facts["text"] = text.digest[:DIGITS]
    return facts | {"primepar": code_version(), "torch": str(torch.__version__)}


def code_version() -> str:
    """Return the version of primepar, with a digest of its sources."""
    return f"{__version__} ({digest_of_code().hex()[:DIGITS]})"


def in_words(value: object) -> str:
    """Return the value of a setting as text."""
    return "none" if value is None else str(value)


def differences(everyone: Sequence[Facts]) -> str:
    """Return what differs from rank 0, and on which ranks; empty if nothing does."""
    return "; ".join(_lines(everyone))


def _lines(everyone: Sequence[Facts]) -> Iterator[str]:
    first = everyone[0]
    for name in sorted({name for facts in everyone for name in facts}):
        others = sorted(
            (facts.get(name, "none"), rank)
            for rank, facts in enumerate(everyone)
            if facts.get(name) != first.get(name)
        )
        for value, pairs in groupby(others, itemgetter(0)):
            ranks = ", ".join(str(rank) for _, rank in pairs)
            yield f"{name} {value} on rank {ranks}, not {first.get(name, 'none')}"
