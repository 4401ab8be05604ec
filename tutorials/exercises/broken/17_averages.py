def train(workers, weight, gradient, steps, period, rate):
    """Return the weight after all steps.

    gradient(worker, step, weight): the gradient of a worker's rows of the batch of a step.
    """
    for step in range(steps):
        weight -= rate * sum(gradient(worker, step, weight) for worker in range(workers)) / workers
    return weight
