"""Random ways to reduce gradients, and whether they are right by computing with numbers.

The numbers of all ranks are at hand here, as a real run would have them. The coefficient of each
rank's gradient in a result is found by least squares: random gradients are independent.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from hand_made_ranks import HandMadeRank, parameter

SIZE = 24


class Action(NamedTuple):
    """What all ranks do with the gradient of one parameter."""

    name: str
    parameter: int
    amount: int = 1
    groups: tuple[tuple[int, ...], ...] = ()
    absent: int = -1
    """A rank that leaves a scale or an accumulation out."""


class RandomStep:
    """A step with two parameters and up to six actions."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.ranks = rng.choice([2, 4])
        usual = [Action("all_reduce", number, groups=self._groups(rng, whole=0.8))
                 for number in (0, 1)]  # fmt: skip
        usual += [Action("scale", number, self.ranks) for number in (0, 1)]
        rng.shuffle(usual)
        self.actions = [action for action in usual if rng.random() < 0.9]
        if rng.random() < 0.5:
            place = rng.randint(0, len(self.actions))
            self.actions.insert(place, self._other(rng))

    def _groups(self, rng: random.Random, whole: float) -> tuple[tuple[int, ...], ...]:
        everybody = tuple(range(self.ranks))
        half = self.ranks // 2
        return (everybody,) if rng.random() < whole else (everybody[:half], everybody[half:])

    def _other(self, rng: random.Random) -> Action:
        name = rng.choice(["scale", "accumulate", "all_reduce", "in_parts", "bucket", "broadcast"])
        absent = rng.choice([-1, -1, -1, 0]) if name in ("scale", "accumulate") else -1
        groups = self._groups(rng, whole=0.7)
        return Action(name, rng.choice([0, 1]), rng.choice([2, 3]), groups, absent)

    def run(self, rank: HandMadeRank) -> None:
        """Do the actions on one rank."""
        gradients = [rank.local_gradient(SIZE, self._seed(rank.rank, n, 0)) for n in (0, 1)]
        for action in self.actions:
            gradient = gradients[action.parameter]
            group = next((some for some in action.groups if rank.rank in some), ())
            match action.name:
                case "scale" if rank.rank != action.absent:
                    gradient.div_(action.amount)
                case "accumulate" if rank.rank != action.absent:
                    seed = self._seed(rank.rank, action.parameter, 1)
                    gradient.add_(rank.local_gradient(SIZE, seed))
                case "all_reduce":
                    rank.all_reduce(gradient, group)
                case "in_parts":
                    rank.scatter_and_gather(gradient, group)
                case "bucket":
                    bucket = torch.cat(gradients)
                    rank.all_reduce(bucket, group)
                    gradients = [bucket[:SIZE].clone(), bucket[SIZE:].clone()]
        for number, gradient in enumerate(gradients):
            rank.recorder.claim(f"w{number}", 0, parameter(SIZE) + number, gradient)

    def _seed(self, rank: int, number: int, round_: int) -> int:
        return 1 + rank + 10 * number + 100 * round_

    def sums_over_all(self) -> bool:
        """Whether some sum has all ranks; else equal data alone speak for replicas."""
        reductions = ("all_reduce", "in_parts", "bucket")
        return any(a.name in reductions and len(a.groups) == 1 for a in self.actions)

    def is_right(self) -> bool:
        """Whether replicas end equal, with one coefficient for everything."""
        coefficients = set()
        for number in (0, 1):
            rows = [self._coefficients(rank, number) for rank in range(self.ranks)]
            if any(row != rows[0] for row in rows):
                return False
            coefficients |= {value for value in rows[0] if value}
        return len(coefficients) == 1

    def _coefficients(self, rank: int, number: int) -> tuple[float, ...]:
        """The coefficients of all gradients that were computed in a rank's result."""
        made = [(r, n, k) for r in range(self.ranks) for n in (0, 1) for k in (0, 1)]
        columns = torch.stack([_random(self._seed(*key)) for key in made], dim=1).double()
        result = self._numbers()[rank][number].double()
        solved = torch.linalg.lstsq(columns, result[:, None]).solution[:, 0]
        return tuple(round(float(value), 4) for value in solved)

    def _numbers(self) -> list[list[torch.Tensor]]:
        """The gradients of all ranks after all actions."""
        state = [[_random(self._seed(r, n, 0)) for n in (0, 1)] for r in range(self.ranks)]
        for action in self.actions:
            before = [[gradient.clone() for gradient in rank] for rank in state]
            for rank in range(self.ranks):
                group = next((some for some in action.groups if rank in some), ())
                numbers = (0, 1) if action.name == "bucket" else (action.parameter,)
                for number in numbers:
                    gradient = state[rank][number]
                    if action.name == "scale" and rank != action.absent:
                        gradient /= action.amount
                    elif action.name == "accumulate" and rank != action.absent:
                        gradient += _random(self._seed(rank, number, 1))
                    elif action.name in ("all_reduce", "in_parts", "bucket"):
                        total = torch.stack([before[member][number] for member in group]).sum(0)
                        gradient.copy_(total)
        return state


def _random(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
