"""Tesseract whose I has the digits of M exchanged: right where the depth is the side."""

from __future__ import annotations

from primepar.partition.tesseract import Tesseract
from primepar.schedule.primitive import Slices, Value


class DigitsExchanged(Tesseract):
    def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
        home = super().home(tensor, r, c, e, q, d)
        return dict(M=(r, e), N=c) if tensor == "I" else home
