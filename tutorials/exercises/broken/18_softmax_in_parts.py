def merge(left, right):
    """Return the part of all keys of two parts; a part is (largest, weights, values).

    weights: the sum of exp(score - largest); values: that of exp(score - largest) * value.
    """
    return max(left[0], right[0]), left[1] + right[1], left[2] + right[2]
