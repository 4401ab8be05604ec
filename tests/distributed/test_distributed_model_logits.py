"""Weights as the transformers library saves them, partitioned, give the logits of that library."""

from __future__ import annotations

from pathlib import Path

import distributed_model_cases as cases
import numpy as np
import pytest
import torch
from distributed_ranks import on_ranks
from model_cases import saved_model

pytest.importorskip("transformers")
PLANS = {
    "gpt2": "primepar",
    "opt": "M2,megatron-sp",
    "llama": "stationary",
    "llama-tied": "data",
    "bloom": "summa",
}


def test_logits_on_four_processes_are_those_of_transformers(tmp_path: Path) -> None:
    saved = {name: saved_model(name, tmp_path / name) for name in PLANS}
    asked = [(model.config, PLANS[name], str(model.folder)) for name, model in saved.items()]
    got, *others = on_ranks(4, cases.logits, 4, asked)
    assert others == [[None] * len(PLANS)] * 3
    for logits_BTV, (name, model) in zip(got, saved.items(), strict=True):
        with torch.no_grad():
            tokens = torch.from_numpy(cases.tokens_of(model.config))
            expected_BTV = model.model(tokens).logits.numpy()
        error = np.abs(logits_BTV - expected_BTV).max() / np.abs(expected_BTV).max()
        assert error < 1e-5, (name, error)
