"""The settings of what a run writes next to its checkpoints: log, timeline and curves."""

from __future__ import annotations

from math import inf
from typing import Annotated

from primepar.distributed.training.optimizer_settings import OptimizerSettings
from primepar.distributed.training.setting_description import described
from primepar.errors import ConfigError


class OutputSettings(OptimizerSettings, frozen=True, kw_only=True):
    """The section `output`; whether a timeline can be recorded depends on `checks.conform`.

    The sections are a chain of structs, as a struct of msgspec has one base.
    """

    log: Annotated[
        str | None, described("output.log", "write the log here, as JSON lines", "none")
    ] = None
    trace: Annotated[
        str | None,
        described("output.trace",
                  "write the timeline of one step: .svg, or .json for Perfetto", "none"),
    ] = None  # fmt: skip
    tensorboard: Annotated[
        str | None,
        described("output.tensorboard", "write curves for TensorBoard into this folder", "none"),
    ] = None
    peak_tflops: Annotated[
        float | None,
        described("output.peak_tflops",
                  "what a device can do, in 10^12 operations a second, for MFU",
                  "from the name of the GPU, if known"),
    ] = None  # fmt: skip

    def check_output(self, conform: bool) -> None:
        """Raise `ConfigError` for a setting out of range, or a timeline of a compared run."""
        peak = self.peak_tflops
        if peak is not None and not 0 < peak < inf:
            raise ConfigError(f"output.peak_tflops: expected a positive number, got {peak}")
        if self.trace is None:
            return
        if not self.trace.endswith((".svg", ".json")):
            raise ConfigError(
                f"output.trace: expected a name that ends with .svg (a picture) or .json "
                f"(a Chrome trace), got {self.trace!r}"
            )
        if conform:
            raise ConfigError(
                "output.trace: expected none together with checks.conform, which watches every "
                f"step itself, got {self.trace!r}: leave one of the two out"
            )
