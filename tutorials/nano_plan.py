"""The cheapest plan of a model by segmented dynamic programming, in one file of NumPy.

Every linear operator of a model can be split over devices in several ways. A choice costs what is
sent for sums that are spread over devices. So does an edge: the next operator may want its input in
other places. With 12 layers of 4 operators and 6 choices there are more than 6^48 plans. But a
chain can be cut at a node, as only the choice there couples both sides. The least cost from a to c:

    T_ac[p, r] = min over q of  T_ab[p, q] + T_bc[q, r]

a matrix product in which (+, min) stands for (x, +). A residual edge from a to c is added to the
table of its ends. Layers are equal, so the table of 12 comes from that of 6, and of 3. PrimePar
(Wang et al., ASPLOS 2024, section 5) calls this segmented dynamic programming. Three questions:

    what does a choice cost?   counted from layouts, nothing is listed
    which plan is cheapest?    tables, joined and repeated
    is it?                     for one layer, compared with every plan there is

Run it with `python tutorials/nano_plan.py`.
"""

from itertools import pairwise, product
from math import prod

import numpy as np

# ---------------------------------------------------------------------- What does a choice cost?

DEVICES = 4
CHOICES = [dict(M=m, N=n, K=k) for m, n, k in product((1, 2, 4), repeat=3) if m * n * k == DEVICES]
TENSORS = {"I": "MN", "W": "NK", "O": "MK"}

# Operator: its input and output features, in units of h. Heads are cut as the columns of qkv.
LAYER = {"qkv": (1, 3), "proj": (1, 1), "fc1": (1, 4), "fc2": (4, 1)}
# Edges inside a layer, and to the next one: the residual goes round two operators.
CHAIN = [("qkv", "proj"), ("proj", "fc1"), ("fc1", "fc2")]


def name(choice):
    return "".join(f"{dim}{count}" for dim, count in choice.items() if count > 1)


def place(choice, device):
    """Slice of each dim on a device: digits of its number, the first dim changes slowest."""
    slices = {}
    for dim in ("K", "N", "M"):
        device, slices[dim] = divmod(device, choice[dim])
    return slices


def part(choice, tensor, device):
    """What a device has of a tensor: an interval of [0, 1) along each of its two dims."""
    slices = place(choice, device)
    return [(slices[dim] / choice[dim], (slices[dim] + 1) / choice[dim]) for dim in TENSORS[tensor]]


def operator_cost(choice, tokens, features_in, features_out):
    """Elements that a device sends in forward, backward and gradient: the sums of O, dI and dW.

    A ring all-reduce of E elements among d devices sends 2 (d - 1) / d E from each.
    """
    sizes = {"M": tokens, "N": features_in, "K": features_out}
    total = 0
    for tensor, summed in (("O", "N"), ("I", "K"), ("W", "M")):
        block = prod(sizes[dim] // choice[dim] for dim in TENSORS[tensor])
        total += 2 * (choice[summed] - 1) * block // choice[summed]
    return total


def edge_cost(before, after, elements, tensor="O"):
    """Elements of the next input that a device lacks, and of its gradient backward: the average."""
    lacking = 0
    for device in range(DEVICES):
        has, needs = part(before, tensor, device), part(after, "I", device)
        shared = prod(
            max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(has, needs, strict=True)
        )
        lacking += prod(end - begin for begin, end in needs) - shared
        lacking += prod(end - begin for begin, end in has) - shared
    return round(lacking * elements / DEVICES)


def costs(tokens, h):
    """A vector for each operator; matrices of edges of h features, of 4 h, and of the residual."""
    nodes = {
        operator: np.array([operator_cost(choice, tokens, a * h, b * h) for choice in CHOICES])
        for operator, (a, b) in LAYER.items()
    }
    narrow, wide = (
        np.array([[edge_cost(p, q, tokens * width) for q in CHOICES] for p in CHOICES])
        for width in (h, 4 * h)
    )
    residual = [[edge_cost(p, q, tokens * h, "I") for q in CHOICES] for p in CHOICES]
    return nodes, narrow, wide, np.array(residual)


# ---------------------------------------------------------------------- Which plan is cheapest?


class Table:
    """Least cost of a segment by the choices at its ends; the node at its start is not counted."""

    def __init__(self, costs, parts=None):
        self.costs, self.parts = costs, parts

    def join(self, other):
        """This segment and the one that starts where it ends: minimise over the node between."""
        sums = self.costs[:, :, None] + other.costs[None]
        return Table(sums.min(1), (self, other))

    def add(self, edge):
        """The same segment with an edge from its first to its last node."""
        return Table(self.costs + edge, self.parts)

    def between(self, first, last):
        """Choices of the nodes between both ends on the cheapest path."""
        if self.parts is None:
            return []
        left, right = self.parts
        middle = int((left.costs[first] + right.costs[:, last]).argmin())
        return [*left.between(first, middle), middle, *right.between(middle, last)]


def layer_table(nodes, narrow, wide, residual):
    """From the qkv of one layer to that of the next: four edges and a residual."""
    edges = {("fc1", "fc2"): wide}
    table = None
    for before, after in [*CHAIN, ("fc2", "qkv")]:
        step = Table(edges.get((before, after), narrow) + nodes[after])
        table = step if table is None else table.join(step)
    return table.add(residual)


def repeated(table, times):
    """The table of as many segments one after another, in about 2 log2(times) joins."""
    if times == 1:
        return table
    half = repeated(table, times // 2)
    twice = half.join(half)
    return twice.join(table) if times % 2 else twice


def cheapest(given, layers):
    """Cost and choices of the best plan of some layers, with one more qkv at its end."""
    table = repeated(layer_table(*given), layers)
    total = table.costs + given[0]["qkv"][:, None]
    first, last = np.unravel_index(total.argmin(), total.shape)
    return int(total.min()), [int(first), *table.between(first, last), int(last)]


# ----------------------------------------------------------------------------------------- Is it?


def price(plan, nodes, narrow, wide, residual):
    """Cost of a plan: add up its nodes and its edges."""
    names = [*LAYER] * (len(plan) // len(LAYER)) + ["qkv"]
    total = sum(nodes[operator][choice] for operator, choice in zip(names, plan, strict=True))
    for here, (p, q) in enumerate(pairwise(plan)):
        total += (wide if names[here] == "fc1" else narrow)[p, q]
    total += sum(residual[plan[here], plan[here + 4]] for here in range(0, len(plan) - 4, 4))
    return int(total)


def every(given):
    """The least cost of one layer and a qkv, over all plans there are."""
    return min(price(plan, *given) for plan in product(range(len(CHOICES)), repeat=5))


def main():
    print("choices:", " ".join(map(name, CHOICES)))
    print("\na device sends, in elements, with 8 tokens and h = 4:")
    nodes, narrow, *_ = costs(8, 4)
    for operator, vector in nodes.items():
        print(
            f"  {operator:5}",
            " ".join(f"{name(c)} {v:4}" for c, v in zip(CHOICES, vector, strict=True)),
        )
    print(
        "  from K4 to",
        " ".join(f"{name(c)} {v:4}" for c, v in zip(CHOICES, narrow[0], strict=True)),
    )

    print("\none layer, next to all plans there are:")
    for tokens, h in ((4, 16), (16, 16), (64, 16)):
        given = costs(tokens, h)
        print(f"  {tokens:2} tokens, h = {h}: {cheapest(given, 1)[0]}, of all plans {every(given)}")

    print("\ntwelve layers, h = 1024:")
    for tokens in (256, 1024, 4096, 65536):
        given = costs(tokens, 1024)
        best, plan = cheapest(given, 12)
        agrees = "its sum agrees" if price(plan, *given) == best else "its sum DIFFERS"
        middle = " ".join(name(CHOICES[choice]) for choice in plan[24:28])
        print(f"  {tokens:5} tokens: {best / 1e6:8.1f} M elements, {agrees}; layer 6: {middle}")
    count = len(CHOICES) ** (4 * 12 + 1)
    print(f"  out of {count:.1e} plans")


if __name__ == "__main__":
    main()
