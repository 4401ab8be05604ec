# %% [markdown]
# ## Exercise: let the pipeline run
#
# `fuse` gets all messages of a stage, in the order of 1F1B, and returns what the stage calls: each
# message once and in that order, some of them in a `Group`. A stage computes between what it
# receives and what it sends on, so a group may hold only what faces one neighbour: one send and
# one receive, the send first. The pipeline has to end with any number of stages and micro-batches.

# %%
from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.schedule import Program
from primepar.schedule.program import Group, Recv, Send
from primepar.verify import verify_program

errors_in_one_line(__file__)


# USER CODE BEGIN
def fuse(messages):
    return list(messages)


# USER CODE END


# %% The check
def messages(stage, stages, batches):
    ahead = min(stages - 1 - stage, batches)
    turns = [("forward", i) for i in range(ahead)]
    for i in range(batches):
        turns += [("forward", i + ahead)] if i + ahead < batches else []
        turns.append(("backward", i))
    calls = []
    for turn, i in turns:
        before, after = (stage - 1, stage + 1) if turn == "forward" else (stage + 1, stage - 1)
        x = "x" if turn == "forward" else "dx"
        calls += [Recv(before, f"{x}{i}.{stage}")] if 0 <= before < stages else []
        calls += [Send(after, f"{x}{i}.{after}")] if 0 <= after < stages else []
    return calls


def flat(calls):
    return [each for call in calls for each in (call.body if isinstance(call, Group) else [call])]


for stages in range(2, 6):
    for batches in range(1, 7):
        ranks = []
        for stage in range(stages):
            given = messages(stage, stages, batches)
            calls = fuse(list(given))
            where = f"{stages} stages, {batches} micro-batches, stage {stage}"
            if flat(calls) != given:
                refuse(f"{where}: expected each message once and in order")
            for call in calls:
                kinds = [type(each) for each in flat([call])]
                one_way = len(kinds) == 1 or kinds == [Send, Recv]
                if not one_way or len({each.peer for each in flat([call])}) > 1:
                    refuse(f"{where}: a group holds other than a send and a receive of a neighbour")
            ranks.append(tuple(calls))
        pipeline = Program("primepar-program", 1, stages, tuple(ranks))
        for result in verify_program(pipeline).properties:
            if result.verdict != "proved":
                lines = (result.counterexample or result.reason).splitlines()
                refuse(f"{stages} stages, {batches} micro-batches, {result.name}: {lines[0]}")

print("Right, for two to five stages.")
