from math import exp


def merge(left, right):
    """Return the part of all keys of two parts; a part is (largest, weights, values).

    weights: the sum of exp(score - largest); values: that of exp(score - largest) * value.
    """
    largest = max(left[0], right[0])
    scales = exp(left[0] - largest), exp(right[0] - largest)
    weights, values = (scales[0] * left[place] + scales[1] * right[place] for place in (1, 2))
    return largest, weights, values
