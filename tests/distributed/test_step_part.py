"""Programs of consecutive operators of a model, such as the MLP of a block."""

import pytest
import torch
from profiles import few
from torch.nn.functional import gelu

import primepar
from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import PlanError
from primepar.models import ModelConfig
from primepar.operators import StepSettings, lower_part
from primepar.partition import parse_sequence
from primepar.plan import preset_plan

MODEL = ModelConfig.of("gpt", hidden=16, heads=4, layers=1, context=8, vocabulary=16)
MLP = tuple(f"blocks.0.{name}" for name in ("fc1", "act", "fc2"))
BEFORE = tuple(
    f"blocks.0.{name}" for name in ("norm1", "qkv", "attention", "proj", "add1", "norm2")
)
BLOCK = (*BEFORE, *MLP, "blocks.0.add2")


@few
@pytest.mark.parametrize("preset", ["data", "megatron", "megatron-sp", "primepar", "stationary"])
@pytest.mark.parametrize("names", [MLP, BLOCK], ids=["mlp", "block"])
def test_a_part_is_proved_and_equals_one_device(preset: str, names: tuple[str, ...]) -> None:
    part = lower_part(preset_plan(preset, MODEL, 4), names, 4, 4)
    for program in (part.forward, part.backward):
        assert primepar.verify(program).verdict == "proved"
        assert primepar.check(program).equal


def test_a_part_on_one_device_is_what_autograd_computes() -> None:
    plan = preset_plan("data", MODEL, 1)
    part = lower_part(plan, MLP, 2, 4)
    torch.manual_seed(0)
    shapes = {"x": (8, 16), "dy": (8, 16), "blocks.0.fc1.weight": (16, 64)}
    shapes["blocks.0.fc2.weight"] = (64, 16)
    blocks = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    x, dy, w1, w2 = (block.clone().requires_grad_() for block in blocks.values())
    y = gelu(x @ w1, approximate="tanh") @ w2
    y.backward(dy)  # type: ignore[no-untyped-call]

    mesh = Mesh(parse_sequence("M1"), dtype=torch.float64)
    settings = StepSettings(MODEL, 2, 4)
    forward = Executor(mesh, part.forward, settings)
    backward = Executor(mesh, part.backward, settings)
    given = {f"{name}[{','.join('0' * block.dim())}]": block for name, block in blocks.items()}
    dy_block = given.pop("dy[0,0]")
    held = forward({name: given[name] for name in forward.initial})
    output = {name: held.pop(name) for name in list(held) if name not in part.kept[0]}
    results = backward(held | {"dy[0,0]": dy_block})
    made = {name.partition("[")[0]: block for name, block in (results | output).items()}
    expected = {part.y: y, part.dx: x.grad}
    expected |= {"blocks.0.fc1.weight.grad": w1.grad, "blocks.0.fc2.weight.grad": w2.grad}
    for name, tensor in expected.items():
        torch.testing.assert_close(made[name], tensor, rtol=1e-12, atol=1e-12)


def test_a_part_has_one_input() -> None:
    plan = preset_plan("data", MODEL, 4)
    with pytest.raises(PlanError) as raised:
        lower_part(plan, ("blocks.0.add1",), 4, 4)
    assert str(raised.value) == (
        "part: expected operators between the embedding and the loss that take one input from "
        "outside, without a pipeline, got inputs blocks.0.proj, embedding: "
        "name those of a block in order"
    )
