def next_row(costs, way, operator):
    """Return the least cost up to each choice of the next operator.

    costs[p]: the least up to choice p of this one; way[p][q]: from p to q; operator[q]: of q.
    """
    return operator
