def depth(devices, M, N, K):
    """Return the depth d of d * q * q devices that sends least; of several the smallest."""
    best = None
    for d in range(1, devices + 1):
        q = round((devices / d) ** 0.5)
        if q * q * d == devices:
            sent = 3 * (q - 1) * (M * N / (q * q * d) + N * K / q**2)
            sent += 2 * (d - 1) * N * K / (d * q * q)
            if best is None or sent < best[0]:
                best = sent, d
    return best[1]
