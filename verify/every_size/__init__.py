"""Proofs of methods with sizes, for every size at once; each method has a file.

`EVERY_SIZE` maps the name of a method to its proof: from seconds to the results of properties. A
method that has none is proved for the sizes that are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from primepar.verify.every_size import stream_k
from primepar.verify.every_size.attention import prove_ring, prove_ulysses
from primepar.verify.every_size.flux import prove_gather, prove_scatter
from primepar.verify.every_size.local_sgd import prove_local_sgd
from primepar.verify.every_size.pipelines import prove_pipeline
from primepar.verify.report import PropertyResult

EveryProof = Callable[[float], Iterable[PropertyResult]]
"""From the time limit in seconds to the results."""
EVERY_SIZE: Mapping[str, EveryProof] = {
    "gpipe": partial(prove_pipeline, "gpipe"),
    "1f1b": partial(prove_pipeline, "1f1b"),
    "flux-gather": prove_gather,
    "flux-scatter": prove_scatter,
    "local-sgd": prove_local_sgd,
    "ring-attention": prove_ring,
    "stream-k": stream_k.prove,
    "ulysses": prove_ulysses,
}

__all__ = ["EVERY_SIZE", "EveryProof"]
