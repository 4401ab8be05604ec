"""The graph of a model with its equal layers folded: what a search looks at.

All layers but the first are equal, so that a graph with two layers has every operator and edge.
Example: of embedding, blocks 0 to 95, norm, head and loss, the folded graph has the embedding,
blocks 0 and 1, norm, head and loss. Block 1 is there for 95 layers.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import TypeVar

from primepar.models.graph import Operator

Part = TypeVar("Part", Operator, list[Operator])


@dataclass(frozen=True)
class FoldedGraph:
    """The operators of a model with at most two layers; the second stands for all but the first.

    `second` are the places of the operators of the second layer.
    """

    operators: tuple[Operator, ...]
    layers: int
    second: range

    @classmethod
    def of(cls, operators: Several[Operator]) -> FoldedGraph:
        """The folded graph of the operators of a model, in the order of execution."""
        names = [operator.name for operator in operators]
        begin = next(place for place, name in enumerate(names) if name.startswith("blocks."))
        size = sum(name.startswith("blocks.0.") for name in names)
        layers = sum(name.startswith("blocks.") for name in names) // size
        end = begin + layers * size
        second = range(begin + size, min(end, begin + 2 * size))
        last, now_last = f"blocks.{layers - 1}.", f"blocks.{min(layers, 2) - 1}."
        after = (
            replace(
                operator, inputs=tuple(name.replace(last, now_last) for name in operator.inputs)
            )
            for operator in operators[end:]
        )
        return cls((*operators[: second.stop], *after), layers, second)

    def split(self, parts: Several[Part]) -> tuple[list[Part], list[Part], list[Part]]:
        """Operators, or segments by their last one: to the first layer, the second, the rest."""
        place_of = {operator.name: place for place, operator in enumerate(self.operators)}
        split: tuple[list[Part], list[Part], list[Part]] = [], [], []
        for part in parts:
            place = place_of[part.name if isinstance(part, Operator) else part[-1].name]
            split[(place >= self.second.start) + (place >= self.second.stop)].append(part)
        return split


def segments(operators: Several[Operator]) -> list[list[Operator]]:
    """The chain of operators, cut at the nodes that no edge skips; segments share their ends.

    Example: a residual addition reads the previous addition too, so that the operators from one
    addition to the next form a segment.
    """
    position = {operator.name: place for place, operator in enumerate(operators)}
    earliest = len(position)
    chain: list[list[Operator]] = []
    for operator in reversed(operators):
        if position[operator.name] <= earliest and position[operator.name] < len(position) - 1:
            chain[-1].append(operator)
            chain.append([operator])
        elif chain:
            chain[-1].append(operator)
        else:
            chain.append([operator])
        earliest = min([earliest, *(position[producer] for producer in operator.inputs)])
    return [segment[::-1] for segment in chain[:-1]][::-1]
