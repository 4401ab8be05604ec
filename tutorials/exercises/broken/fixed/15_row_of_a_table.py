def next_row(costs, way, operator):
    """Return the least cost up to each choice of the next operator.

    costs[p]: the least up to choice p of this one; way[p][q]: from p to q; operator[q]: of q.
    """
    return [
        min(cost + row[choice] for cost, row in zip(costs, way, strict=True)) + price
        for choice, price in enumerate(operator)
    ]
