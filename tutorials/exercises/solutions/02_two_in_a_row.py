"""Exercise 2: columns, then rows. Megatron-LM splits every MLP this way."""

# USER CODE BEGIN
fc1 = "K4"
fc2 = "N4"
# USER CODE END
