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
    "training.steps",
    "training.device",
    "training.accumulate",
    "training.recompute",
    "optimizer.sharded",
)
"""Settings of these sections that may differ: they divide the work, or have no part in a loss."""
_DATA, _BATCH, _DECAY = "training.data", "training.batch", "optimizer.decay_steps"


def identity_of(
    settings: Settings, layout: Sequence | Plan, model: ModelConfig, text: Text, ranks: int
) -> Identity:
    """Return what a run is.

    The data is compared by its content, the batch with the plan's. A rate that falls until the last
    step depends on the number of steps.
    """
    values = {
        key_of(name): value
        for name, value in msgspec.structs.asdict(settings).items()
        if key_of(name).partition(".")[0] in SECTIONS and key_of(name) not in FREE
    }
    values[_DATA] = text.digest[:DIGITS]
    values[_BATCH] = sizes_of(settings, layout)[0]
    if settings.schedule != "constant" and settings.decay_steps is None:
        values[_DECAY] = settings.steps
    plan = str(settings.plan_file or layout)
    code = f"{__version__} ({digest_of_code().hex()[:DIGITS]})"
    return Identity(values, msgspec.to_builtins(model), plan, ranks, code)


def differences(saved: Identity, now: Identity) -> list[str]:
    """Return the settings that differ, each with both values.

    A setting that the version which saved did not have counts with its default.
    """
    defaults = {key_of(field.name): field.default for field in msgspec.structs.fields(Settings)}
    pairs = [
        (key, now.settings[key], saved.settings.get(key, defaults.get(key)))
        for key in sorted(now.settings, key=_place)
    ]
    return [
        f"{key}={_shown(value)} instead of {_shown(before)}"
        for key, value, before in pairs
        if value != before
    ]


def _place(key: str) -> tuple[int, str]:
    return SECTIONS.index(key.partition(".")[0]), key


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
