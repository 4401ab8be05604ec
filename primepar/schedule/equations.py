"""The maps and homes of a primitive as equations, as its expressions print themselves."""

from __future__ import annotations

from primepar.schedule.operators import tensor_dims
from primepar.schedule.primitive import Primitive
from primepar.schedule.tracing import maps_of


def map_equations(primitive: Primitive) -> dict[str, str]:
    """Phase -> its map, `M=r, N=(r + c + t) % s, K=c`."""
    return {
        phase: ", ".join(f"{dim}={_digits(index)}" for dim, index in slices.items())
        for phase, slices in maps_of(primitive).phases.items()
    }


def home_equations(primitive: Primitive) -> dict[str, str]:
    """Tensor -> its home, `I[r, c]`; empty for a primitive that declares no homes.

    A dim that is whole is written `:`, a digit that is open `*`.
    """
    equations: dict[str, str] = {}
    for tensor, slices in maps_of(primitive).homes.items():
        dims = (dim for dim in tensor_dims(tensor) if dim != "B" or dim in slices)
        cut = (_digits(slices[dim]) if dim in slices else ":" for dim in dims)
        equations[tensor] = f"{tensor}[{', '.join(cut)}]"
    return equations


def _digits(index: tuple[object, ...]) -> str:
    return str(index[0]) if len(index) == 1 else f"({', '.join(map(str, index))})"
