# %% [markdown]
# ## Exercise: what has to go?
#
# `evict` is asked whenever the device is full and one more chunk is needed. `here` lists the chunks
# on the device, the one that was used least recently first. `later` lists the chunks that will be
# read from now on, in order, the needed one first. Return the chunk of `here` that has to go. As
# given, it is the least recently used one.
#
# For every trace there must be no way with fewer fetches. Is it the chunk that is used least often
# from now on? Or the one that was used last?

# %%
from functools import cache
from itertools import product

from primepar.api.tutorial_answers import errors_in_one_line, refuse

errors_in_one_line(__file__)


# USER CODE BEGIN
def evict(here, later):
    return here[0]


# USER CODE END


# %% The check
def fetched(trace, room):
    """The fetches of the answer."""
    here, count = [], 0
    for moment, chunk in enumerate(trace):
        if chunk not in here:
            count += 1
            if len(here) == room:
                gone = evict(list(here), list(trace[moment:]))
                if gone not in here:
                    refuse(f"{' '.join(trace)}: expected one of {' '.join(here)}, got {gone!r}")
                here.remove(gone)
        here = [name for name in here if name != chunk] + [chunk]
    return count


def fewest(trace, room):
    """The least number of fetches, over all choices of what goes."""

    @cache
    def rest(moment, here):
        if moment == len(trace):
            return 0
        chunk = trace[moment]
        if chunk in here:
            return rest(moment + 1, here)
        if len(here) < room:
            return 1 + rest(moment + 1, here | {chunk})
        return 1 + min(rest(moment + 1, here - {gone} | {chunk}) for gone in here)

    return rest(0, frozenset())


pieces = [f"w{number}" for number in range(6)]
step = [*pieces, *reversed(pieces), *pieces, *pieces]
traces = [(trace, 2) for trace in product("abc", repeat=7)]
traces += [(trace, 3) for trace in product("abcd", repeat=6)]
traces += [(step, room) for room in range(1, 7)]
for trace, room in traces:
    count, least = fetched(trace, room), fewest(tuple(trace), room)
    if count > least:
        refuse(f"{' '.join(trace)}, room for {room}: {count} fetches, {least} are enough")

print(f"Right, for {len(traces)} traces. A step of six pieces, with room for three, has "
      f"{fetched(step, 3)} fetches.")  # fmt: skip
