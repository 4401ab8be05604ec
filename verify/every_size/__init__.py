"""Proofs of methods with sizes, for every size at once; each method has a file.

`EVERY_SIZE` maps the name of a method to its proof: from seconds to the results of properties. A
method that has none is proved for the sizes that are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from primepar.verify.report import PropertyResult

EveryProof = Callable[[float], Iterable[PropertyResult]]
"""From the time limit in seconds to the results."""
EVERY_SIZE: Mapping[str, EveryProof] = {}

__all__ = ["EVERY_SIZE", "EveryProof"]
