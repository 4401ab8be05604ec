"""Exercise 5: an operand that moves does so three times, dO once for both of its phases."""


# USER CODE BEGIN
def stays(M, N, K):
    sent = {
        "O": 3 * (M * N + N * K),
        "I": 3 * N * K + 2 * M * K,
        "W": 3 * M * N + 2 * M * K,
    }
    return min(sent, key=sent.get)


# USER CODE END
