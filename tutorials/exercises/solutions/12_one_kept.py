"""Exercise 12: backward cuts M, where dO and I are at home; gradient needs the I of forward."""

# USER CODE BEGIN
forward, backward, gradient = "K", "M", "K"
homes = dict(I="M", W="K", O="K")
# USER CODE END
