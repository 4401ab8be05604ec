# %% [markdown]
# ## Exercise: the order of a stage
#
# `order` gets the number of a stage, how many stages there are, and how many micro-batches. It
# returns the actions of that stage, first to last: `("F", k)` is the forward of micro-batch `k`,
# and `("B", k)` its backward, both gradients together. As given it is GPipe without its reversal:
# every stage keeps all micro-batches.
#
# Write the order of 1F1B. With `p` stages, stage `i` may keep `p - i` micro-batches at once and no
# more, and the whole must be as quick as GPipe. How many forwards does a stage need before its
# first backward? Fewer keep less still, but then the stages wait for one another.

# %%
import primepar
from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.partition.pipeline.actions import Action
from primepar.partition.pipeline.dependencies import PipelineOrders, Position
from primepar.partition.pipeline.formulas import bubble
from primepar.partition.pipeline.program import pipeline_program
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.reference.emulator.executor import LogicalClock

errors_in_one_line(__file__)


# USER CODE BEGIN
def order(stage, stages, micro_batches):
    forwards = [("F", k) for k in range(micro_batches)]
    backwards = [("B", k) for k in range(micro_batches)]
    return forwards + backwards


# USER CODE END


# %% The check
def actions(stage, stages, micro_batches):
    """The answer for a stage, where each B is followed by its W."""
    answer = [tuple(pair) for pair in order(stage, stages, micro_batches)]
    if sorted(answer) != [(kind, k) for kind in "BF" for k in range(micro_batches)]:
        refuse(f"{where}, stage {stage}: expected F and B of each micro-batch once")
    return tuple(Action(name, k) for kind, k in answer for name in kind.replace("B", "BW"))


def kept(stage_order):
    """The most micro-batches between F and W."""
    forwards, most = 0, 0
    for action in stage_order:
        forwards += {"F": 1, "B": 0, "W": -1}[action.kind]
        most = max(most, forwards)
    return most


def idle(program, work):
    """The longest time from the first to the last product of a stage, less its work."""
    clock = LogicalClock(transfer=0, phases={"loss": 0})
    events = emulate(program, memories(program), clock=clock).events
    spans = []
    for stage in range(program.ranks):
        products = [e for e in events if e.rank == stage and e.end > e.start and e.phase]
        spans.append(max(e.end for e in products) - min(e.start for e in products))
    return max(spans) - work


for p, count in ((2, 1), (2, 3), (3, 2), (3, 6), (4, 8)):
    where = f"{p} stages, {count} micro-batches"
    pipeline = PipelineOrders(p, count, 1, tuple(actions(i, p, count) for i in range(p)), "1f1b")
    for stage, stage_order in enumerate(pipeline.orders):
        if kept(stage_order) > p - stage:
            refuse(f"{where}: stage {stage} keeps {kept(stage_order)}, expected {p - stage}")
    for stage, stage_order in enumerate(pipeline.orders):
        for place, action in enumerate(stage_order):
            if Position(stage, place) not in pipeline.known:
                refuse(f"{where}: stage {stage} waits before {action.kind}{action.micro_batch}, "
                       "in a cycle of stages that wait for one another")  # fmt: skip
    program = pipeline_program(pipeline, rows=1, width=1)
    for result in primepar.verify(program).properties:
        if result.verdict != "proved":
            lines = (result.counterexample or result.reason).splitlines()
            refuse(f"{where}, {result.name}: {lines[0]}")
    units = idle(program, 3 * count)
    if units > bubble("gpipe", p, count):
        refuse(f"{where}: a stage waits for {units:g} units, in GPipe {bubble('gpipe', p, count)}")

print("Right, for two to four stages. The order of four:")
for stage in range(4):
    print("  " + " ".join(f"{kind}{k}" for kind, k in order(stage, 4, 8)))
