def train(workers, weight, gradient, steps, period, rate):
    """Return the weight after all steps.

    gradient(worker, step, weight): the gradient of a worker's rows of the batch of a step.
    """
    copies = [weight] * workers
    for step in range(steps):
        copies = [copy - rate * gradient(worker, step, copy) for worker, copy in enumerate(copies)]
        if (step + 1) % period == 0 or step + 1 == steps:
            copies = [sum(copies) / workers] * workers
    return copies[0]
