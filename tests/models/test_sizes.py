"""Published models by name."""

from __future__ import annotations

import pytest

from primepar.errors import ConfigError
from primepar.models.sizes import MODELS, find_model

PARAMETERS = {"opt-6.7b": 6.7, "opt-175b": 175, "llama-2-7b": 6.7, "llama-2-70b": 69,
              "bloom-7b1": 7.07, "bloom-176b": 176.2}  # fmt: skip
"""Billions of parameters, as the papers round them."""


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_the_parameters_that_its_name_states(name: str) -> None:
    model = find_model(name)
    assert model is MODELS[name]
    assert model.parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


def test_a_name_that_is_neither_a_model_nor_a_file_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        find_model("opt-13b")
    assert str(caught.value) == (
        "expected a config.json or one of opt-6.7b, opt-175b, llama-2-7b, llama-2-70b, bloom-7b1, "
        "bloom-176b, got opt-13b"
    )
