"""Exercise 14: each fact as often as takes s and d away."""

# USER CODE BEGIN
factors = {
    "s + d >= 1": {-1: 1, 0: 1, 1: 1},
    "d <= 2 s - 2": {-1: 1, 0: 1, 2: 1},
    "3 d <= 3 s - 2": {-1: 1, 2: 3},
}
# USER CODE END
