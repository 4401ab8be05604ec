"""Weights as a Hugging Face folder: what is next to the tensors, and places that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import training_cases as cases
from model_cases import CONFIGS, drawn

from primepar.errors import ConfigError
from primepar.models import ModelConfig, load_config, write_weights
from primepar.models.config_json import config_content
from primepar.models.hugging_face import MODEL, shards, write_rest
from primepar.plan import preset_plan, save_plan

LLAMA = ModelConfig.of("llama", layers=1, hidden=16, heads=4, ffn=24, context=16, vocabulary=256)


def plan_file(folder: Path) -> str:
    save_plan(preset_plan("data", LLAMA, 1, cases.BATCH), folder / "plan.json")
    return str(folder / "plan.json")


def given_folder(folder: Path, config: ModelConfig = LLAMA) -> Path:
    """Weights with a configuration of more keys than ours, and a tokenizer."""
    folder.mkdir()
    write_weights(folder / MODEL, config, drawn(config))
    (folder / "config.json").write_text(json.dumps(config_content(config) | {"bos_token_id": 7}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("not copied")
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_content(CONFIGS[name], "BF16")))
    assert load_config(tmp_path) == CONFIGS[name]


def test_a_configuration_that_transformers_lacks_is_refused() -> None:
    opt = replace(CONFIGS["opt"], epsilon=0.125)
    with pytest.raises(ConfigError) as caught:
        config_content(opt)
    assert str(caught.value) == (
        "model: expected epsilon 1e-05 as transformers has it for opt, got 0.125: save into a file "
        "that ends with .safetensors"
    )


def test_tensors_are_spread_over_files_of_a_size(tmp_path: Path) -> None:
    layout = {"a": ("F32", (4, 2)), "b": ("F16", (8,)), "c": ("F32", (100,)), "d": ("F32", (1,))}
    assert list(shards(layout)) == [MODEL]
    files = shards(layout, 48)
    assert [list(group) for group in files.values()] == [["a", "b"], ["c"], ["d"]]
    assert list(files) == [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    write_rest(tmp_path, CONFIGS["gpt2"], files, None)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 32 + 16 + 400 + 4}
    assert index["weight_map"]["c"] == "model-00002-of-00003.safetensors"


def test_a_run_goes_from_a_folder_to_a_folder(tmp_path: Path) -> None:
    given, saved = given_folder(tmp_path / "given"), tmp_path / "saved"
    changes = {"weights": str(given), "save_weights": str(saved), "plan": plan_file(tmp_path)}
    assert cases.train(tmp_path / "run", steps=1, **changes) == 0
    assert sorted(path.name for path in saved.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert (saved / "config.json").read_bytes() == (given / "config.json").read_bytes()
    again = cases.train(tmp_path / "again", steps=1, **changes)
    assert again == (
        f"WeightError: weights.save {saved}: expected an empty folder or none, got one with files: "
        "choose another one, or a file that ends with .safetensors"
    )


def test_weights_of_another_configuration_are_refused(tmp_path: Path) -> None:
    given = given_folder(tmp_path / "given", replace(LLAMA, epsilon=0.5, dropout=0.25))
    answer = cases.train(tmp_path / "run", steps=1, weights=str(given), plan=plan_file(tmp_path))
    assert answer == (
        f"WeightError: {given / 'config.json'}: expected epsilon 1e-06 as in the model, got 0.5: "
        "give the weights of this model"
    )


def test_a_folder_for_a_model_that_transformers_lacks_is_refused(tmp_path: Path) -> None:
    answer = cases.train(tmp_path / "run", steps=1, save_weights=str(tmp_path / "saved"))
    assert answer == (
        "ConfigError: model: expected a family out of gpt2, opt, llama, bloom for a Hugging Face "
        "folder, got gpt: save into a file that ends with .safetensors"
    )
    assert not (tmp_path / "run" / "log.jsonl").exists()
