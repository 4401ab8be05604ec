"""Exercise 10: one forward for each later stage, then one forward and one backward in turn."""


# USER CODE BEGIN
def order(stage, stages, micro_batches):
    warm_up = min(stages - 1 - stage, micro_batches)
    actions = [("F", k) for k in range(warm_up)]
    for k in range(micro_batches):
        if warm_up + k < micro_batches:
            actions.append(("F", warm_up + k))
        actions.append(("B", k))
    return actions


# USER CODE END
