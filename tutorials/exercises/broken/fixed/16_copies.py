def redundant(devices, slices, sizes):
    """Return the elements that all devices hold beyond one copy of I, W and O.

    slices["M"]: into how many slices M is cut; sizes["M"]: the length of M; and so for N and K.
    """
    total = 0
    for first, second in ("MN", "NK", "MK"):
        copies = devices // (slices[first] * slices[second])
        total += (copies - 1) * sizes[first] * sizes[second]
    return total
