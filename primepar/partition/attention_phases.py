"""The phases of one attention that is divided over devices: the online softmax as a sum.

Sources: Milakov and Gimelshein, arXiv 1805.02867; Rabe and Staats, arXiv 2112.05682; keys and
values in blocks: Liu et al., arXiv 2310.01889.

The output of a query is a mean of values, weighted by the exponentials of its scores. So it is a
quotient of two sums over the keys, which may be divided into blocks in any way:

    numerator    sum of exp(score) value        denominator    sum of exp(score)

Both are plain sums: a block of keys adds its terms, in any order, and each has to add them once.
Their exponentials can be too large for a floating-point number. So they are stored as multiples of
exp(m), with the largest score m so far. If two such sums are added, that of the smaller m is scaled
down: this is the online softmax. It changes how a sum is stored, and not what it is a sum of. That
is why the state below is a sum over N to the prover, and a scaled sum to what computes numbers.

    part     state[M,H] += q[M,H], kv[N,H]        numerators, denominators and m of these keys
    output   o[M,H]      = numerator / denominator
    delta    delta[M,H]  = sum of o do of a head
    query    dq[M,H]    += q, kv, state, delta, do        over the blocks of keys N
    keys     dkv[N,H]   += q, kv, state, delta, do        over the blocks of queries M

M are blocks of queries, N those of keys and values, H groups of heads. Backward knows the state,
hence the weight of each key, so that its two sums are plain ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from primepar.schedule.program import Compute
from primepar.schedule.signature import Signature, Tensor

OPERANDS = ("q[M,H]", "kv[N,H]", "state[M,H]", "delta[M,H]", "do[M,H]")
SIGNATURES = {
    "part": Signature(OPERANDS[:2], "state[M,H]", kernel="online.part"),
    "output": Signature(("state[M,H]",), "o[M,H]", kernel="online.output"),
    "delta": Signature(("o[M,H]", "do[M,H]"), "delta[M,H]", kernel="online.delta"),
    "query": Signature(OPERANDS, "dq[M,H]", kernel="online.query"),
    "keys": Signature(OPERANDS, "dkv[N,H]", kernel="online.keys"),
}
"""Phase -> its signature."""
TENSORS = ("q", "kv", "state", "o", "do", "delta", "dq", "dkv")


def work(name: str, queries: int, keys: int | None, heads: int) -> Compute:
    """The compute of one phase; `keys` is None where a phase has no block of keys."""
    indices = {"M": queries, "H": heads} | ({} if keys is None else {"N": keys})
    *reads, writes = (template.block(indices) for template in SIGNATURES[name].templates)
    return Compute(tuple(reads), writes, name, indices)


def grid(queries: int, keys: int, heads: int) -> dict[str, dict[str, int]]:
    """The sub-operators of all phases."""
    counts = {"M": queries, "N": keys, "H": heads}
    return {
        name: {dim: count for dim, count in counts.items() if dim in signature.dims}
        for name, signature in SIGNATURES.items()
    }


def columns(heads: int, head_dim: int) -> dict[str, int]:
    """Columns of each tensor: a state has a head's numerators, its denominator and its m."""
    wide = {"kv": 2 * head_dim, "dkv": 2 * head_dim, "state": head_dim + 2, "delta": 1}
    return {name: heads * wide.get(name, head_dim) for name in TENSORS}


def cuts(size: int, parts: int) -> tuple[int, ...]:
    """The first elements of equal parts, and the size."""
    return tuple(range(0, size + 1, size // parts))


def sizes(
    positions: int, heads: int, head_dim: int, rows: int, groups: int
) -> Iterator[tuple[str, Tensor]]:
    """The tensors, cut into parts of the rows and groups of the heads."""
    for name, size in columns(heads, head_dim).items():
        yield name, Tensor((cuts(positions, rows), cuts(size, groups)))
