"""What is wrong, as data, and the smallest program in which it is."""
