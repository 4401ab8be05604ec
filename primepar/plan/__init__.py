"""Plans: a sequence for every operator of a model, the layouts of its tensors, and what moves.

Called, `primepar.plan(model, cluster, devices)` searches the best plan: see `primepar.api.plan`.
"""

from primepar.plan.checks import RowCuts
from primepar.plan.layouts import (
    Edge,
    ParameterPlace,
    Way,
    edges,
    ends,
    lookup,
    padded_vocabulary,
    parameter_places,
    summed_rows,
    weight_layout,
)
from primepar.plan.operator_layouts import Ends, part, sequence_lines
from primepar.plan.plan import Plan, load_plan, save_plan
from primepar.plan.presets import PRESETS, names_preset, preset_plan

__all__ = [
    "PRESETS",
    "Edge",
    "Ends",
    "ParameterPlace",
    "Plan",
    "RowCuts",
    "Way",
    "edges",
    "ends",
    "load_plan",
    "lookup",
    "names_preset",
    "padded_vocabulary",
    "parameter_places",
    "part",
    "preset_plan",
    "save_plan",
    "sequence_lines",
    "summed_rows",
    "weight_layout",
]
