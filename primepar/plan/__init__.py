"""Plans: a sequence for every operator of a model, the layouts of its tensors, and what moves.

Called, `primepar.plan(model, cluster, devices)` searches the best plan: see `primepar.api.plan`.
"""

from primepar.plan.layouts import (
    Edge,
    Ends,
    ParameterPlace,
    Way,
    edges,
    ends,
    lookup,
    padded_vocabulary,
    parameter_places,
    part,
    sequence_lines,
    summed_rows,
    weight_layout,
)
from primepar.plan.plan import Plan, load_plan, save_plan
from primepar.plan.ready import READY, ready_plan
from primepar.plan.rows import RowCuts

__all__ = [
    "READY",
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
    "padded_vocabulary",
    "parameter_places",
    "part",
    "ready_plan",
    "save_plan",
    "sequence_lines",
    "summed_rows",
    "weight_layout",
]
