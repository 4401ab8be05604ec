"""Iteration times that others have published, next to the planner's predictions of them."""
