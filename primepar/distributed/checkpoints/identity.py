"""What a run is, and whether a run that resumes is still the same one.

Settings of these sections define the losses. How the work is divided does not, so a resumed run may
have another plan, another number of ranks, or another device.
"""

from __future__ import annotations

from typing import Any

import msgspec

from primepar import __version__
from primepar.distributed.checkpoints.manifest import Identity
from primepar.distributed.training.alike import DIGITS
from primepar.distributed.training.data import Text
from primepar.distributed.training.settings import Settings, key_of
from primepar.distributed.training.settings_layout import sizes_of
from primepar.files import digest_of_code
from primepar.models import ModelConfig
from primepar.plan import Plan
from primepar.schedule import Sequence

SECTIONS = ("training", "optimizer", "averaging")
"""Sections whose settings must be the same."""
FREE = (
    "training.steps", "training.device", "training.accumulate", "training.recompute",
    "optimizer.sharded",
)  # fmt: skip
"""Settings of these sections that may differ."""
_DATA, _BATCH = "training.data", "training.batch"


def identity_of(
    settings: Settings, layout: Sequence | Plan, model: ModelConfig, text: Text, ranks: int
) -> Identity:
    """Return what a run is. The data is compared by its content, the batch with the plan's."""
    values = {
        key_of(name): value
        for name, value in msgspec.structs.asdict(settings).items()
        if key_of(name).partition(".")[0] in SECTIONS and key_of(name) not in FREE
    }
    values[_DATA] = text.digest[:DIGITS]
    values[_BATCH] = sizes_of(settings, layout)[0]
    plan = str(settings.plan_file or layout)
    code = f"{__version__} ({digest_of_code().hex()[:DIGITS]})"
    return Identity(values, msgspec.to_builtins(model), plan, ranks, code)


def differences(saved: Identity, now: Identity) -> list[str]:
    """Return the settings that differ, each with both values.

    A setting that the saved run did not have yet counts with its default.
    """
    defaults = {key_of(field.name): field.default for field in msgspec.structs.fields(Settings)}
    before = {key: saved.settings.get(key, defaults.get(key)) for key in now.settings}
    before |= saved.settings
    return [
        f"{key}={_shown(now.settings.get(key))} instead of {_shown(value)}"
        for key, value in before.items()
        if now.settings.get(key) != value
    ]


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
