"""The number of chunks for a transfer and the product next to it, chosen by their predicted time.

A product of P chunks takes P launches, and passes the operand that is not cut P times through
memory. So more chunks hide more of the transfer and cost more themselves. With x seconds for the
product of a chunk, l seconds of latency and b seconds of bytes for the transfer of a chunk:

    all-gather     ring of p parts in c chunks: chunk i is multiplied after chunk i - 1, and once
                   it is here; it is sent on at the same time, and what moves shares the link
    reduction      chunk i is reduced once it is multiplied, and once the bytes of chunk i - 1
                   have arrived: end(i) = max((i + 1) x + l, end(i - 1)) + b

Without chunks the product does not hide the transfer: their seconds are added. What is computed
after a product, before anything waits for its reduction, hides it too. So does what is computed
before a whole gather is needed: dI hides the gather of I for dW. A ring starts after that. Other
transfers on the same links are not counted, nor is memory: the pass `overlap` may wait earlier to
keep within the peak. The recurrences are ours; FLUX (Chang et al., arXiv 2406.06858) tunes its
tiles by measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isqrt

from primepar.passes.chunk_transfers import MOST_CHUNKS, ChunkCount, HidingWork, TransferPair
from primepar.plan.cluster import Cluster, Link
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.simulator.links import Clock, DeviceTransfer, Network


def chunk_count(cluster: Cluster, dtype: str) -> ChunkCount:
    """Return the choice of the number of chunks for a pair on a cluster, in a data type.

    Raises `ClusterError` for a data type that the cluster has no rates of.
    """
    cluster.rate(dtype)
    return lambda pair: best_count(pair, cluster, dtype)


def best_count(pair: TransferPair, cluster: Cluster, dtype: str) -> int:
    """Return the number of chunks with the least predicted time; the smallest of equal ones."""
    return min(
        counts(pair), key=lambda chunks: (pair_seconds(pair, chunks, cluster, dtype), chunks)
    )


def counts(pair: TransferPair) -> Iterator[int]:
    """Yield the numbers of chunks that are compared: 0, no change, and the divisors of a part."""
    yield 0
    for chunks in range(1, min(MOST_CHUNKS, pair.most) + 1):
        if pair.most % chunks == 0 and (chunks > 1 or pair.transfer == "all_gather"):
            yield chunks


def pair_seconds(pair: TransferPair, chunks: int, cluster: Cluster, dtype: str) -> float:
    """Return the predicted seconds of a transfer and its product in some chunks."""
    link = cluster.links[cluster.level_between(min(pair.ranks), max(pair.ranks))]
    training, members = Training(ClusterLinks(cluster, 0), dtype, 1, 1), len(pair.ranks)
    if pair.transfer == "all_gather":
        part = pair.reads[0] * training.item / members
        earlier = _hiding(pair.earlier, training)
        if chunks < 1 or not cluster.overlap:
            gathered = _gathered(link, members, part)
            start = max(earlier, gathered) if cluster.overlap else earlier + gathered
            return start + _product(pair, 1, training)
        seconds = _product(pair, members * chunks, training)
        return earlier + _ring(pair, chunks, seconds, part / chunks, cluster)
    rounds = 2 if pair.transfer == "all_reduce" else 1
    sent = rounds * (members - 1) / members * pair.result * training.item
    pieces = max(1, chunks if cluster.overlap else 1)
    ring = link.collective(pair.transfer, members, sent / pieces, rounds * (members - 1))
    seconds = _product(pair, pieces, training)
    end = _reduced(pieces, seconds, ring.start, sent / pieces / ring.alone)
    later = _hiding(pair.later, training)
    return max(end, pieces * seconds + later) if cluster.overlap else end + later


def _product(pair: TransferPair, pieces: int, training: Training) -> float:
    """Return the seconds of the product of one of some pieces."""
    cut, other, result = *pair.reads, pair.result
    # Each dim is in two of the three blocks, so their product is the square of the operations.
    operations = 2 * isqrt(cut * other * result) / pieces
    whole, apart = (other, result) if pair.cut_result else (result, other)
    return training.seconds(operations, whole + (cut + apart) / pieces)


def _hiding(work: HidingWork, training: Training) -> float:
    """Return the seconds of what is computed before a gather is needed, or after a reduction."""
    count = work.computes
    return count and count * training.seconds(work.operations / count, work.elements / count)


def _gathered(link: Link, members: int, part: float) -> float:
    """Return the seconds of an all-gather; of two members it is a message each way."""
    if members == 2:
        return float(link.message(part) + part / link.alone)
    ring = link.collective("all_gather", members, (members - 1) * part, members - 1)
    return float(ring.start + (members - 1) * part / ring.alone)


def _ring(pair: TransferPair, chunks: int, product: float, message: float, on: Cluster) -> float:
    """Return the seconds of a ring of chunks of `message` bytes, and their products.

    Every device does the same at the same time, so one of them is simulated. What it sends leaves
    when what the device before it sends arrives.
    """
    clock, members, arrived = Clock(), len(pair.ranks), set[int]()
    network, number, is_busy = Network(on, clock, float), 0, False
    hop = DeviceTransfer(min(pair.ranks), max(pair.ranks), Fraction(message))

    def send(chunk: int) -> None:
        def arrive() -> None:
            arrived.add(chunk)
            multiply()

        network.start([hop], 1, arrive)

    def multiply() -> None:
        """Multiply the next chunk if it is there; it is sent on, unless it has been everywhere."""
        nonlocal is_busy
        # What is multiplied as number i has arrived as number i - chunks.
        is_here = number < chunks or number - chunks in arrived
        if is_busy or not is_here or number == members * chunks:
            return
        is_busy = True
        if chunks <= number < (members - 1) * chunks:
            send(number)
        clock.schedule(clock.now + product, multiplied)

    def multiplied() -> None:
        nonlocal number, is_busy
        number, is_busy = number + 1, False
        multiply()

    for chunk in range(chunks):
        send(chunk)
    multiply()
    clock.run(network.settle)
    return float(clock.now)


def _reduced(chunks: int, product: float, latency: float, sent: float) -> float:
    """Return the seconds of products, each followed by its reduction, which overlap."""
    end = 0.0
    for number in range(chunks):
        end = max((number + 1) * product + latency, end) + sent
    return end
