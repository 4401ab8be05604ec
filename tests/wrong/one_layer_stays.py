"""Tesseract whose layers all rest with the rows of the first."""

from __future__ import annotations

from primepar.partition.tesseract import Tesseract
from primepar.schedule.primitive import Slices, Value


class OneLayerStays(Tesseract):
    def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
        home = super().home(tensor, r, c, e, q, d)
        return dict(M=(0, r), N=c) if tensor == "I" else home
