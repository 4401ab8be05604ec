"""Exercise 13: a block of n / side has n / side / 4 operations for each byte, rounded up."""


# USER CODE BEGIN
def smallest(rate, bandwidth, side):
    return side * -(-4 * rate // bandwidth)


# USER CODE END
