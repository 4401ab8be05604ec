# %% [markdown]
# ## Exercise: two copies
#
# Eight devices could hold two copies of a Megatron of four, each with its half of the batch: a
# tensor times data mesh. Write its plan: a function that gives the sequence of an operator by its
# kind (`embedding`, `norm`, `linear`, `attention`, `activation`, `add`, `loss`) and name
# (`blocks.0.fc2`), such that
#
# - every device holds a quarter of each linear weight, and of the table of tokens,
# - nothing is moved between operators,
# - and every copy has half of the rows everywhere.
#
# The first primitive of a sequence is the outermost.

# %%
import numpy as np

from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.errors import PlanError, SequenceError
from primepar.models import GPTConfig, operators
from primepar.plan import Plan, edges, ends, lookup, part, weight_layout
from primepar.reference.emulator.model import EmulatedModel
from primepar.reference.oracle.transformer import Transformer

errors_in_one_line(__file__)


# USER CODE BEGIN
def sequence(kind, name):
    if kind == "linear":
        return "N8" if name.endswith(("proj", "fc2")) else "K8"
    return {"embedding": "N8", "attention": "K8", "activation": "K8", "loss": "K8"}.get(kind, "R8")


# USER CODE END


# %% The check
model = GPTConfig(layers=1, hidden=32, heads=8, context=4, vocabulary=64)
sequences = {each.name: sequence(each.kind, each.name) for each in operators(model)}
try:
    plan = Plan(model=model, ranks=8, batch=2, sequences=sequences)
except (PlanError, SequenceError) as error:
    refuse(error)

for operator in plan.operators:
    rows = ends(plan, operator.name).output.grid[0]
    if rows != 2:
        refuse(f"{operator.name} has its rows cut in {rows}, not in two")
    if operator.kind == "linear":
        slices = np.prod(weight_layout(plan, operator.name).grid)
        if slices != 4:
            refuse(f"the weight of {operator.name} is cut in {slices}, not in four")
if np.prod(part(lookup(plan), (1, 2)).grid) != 4:
    refuse("the table of tokens is not cut in four")
for edge in edges(plan):
    forward, backward = edge.elements(tokens=2 * model.context)
    if forward + backward:
        refuse(f"{forward + backward} elements move between {edge.producer} and {edge.consumer}")

tokens = np.random.default_rng(0).integers(0, model.vocabulary, (2, 2, model.context))
dense = Transformer.initial(model)
loss, gradients = dense.loss_and_gradients(*tokens)
step = EmulatedModel(model, plan, dense.parameters).loss_and_gradients(*tokens)
same = all(np.allclose(step.gradients[name], gradients[name], atol=1e-12) for name in gradients)
if not (np.isclose(step.loss, loss) and same):
    refuse("loss or gradients are not those of one device")
print("Right. Elements that a device sends in a step:", float(max(step.sent)))
