"""Plans drawn at random, priced and measured: how well the planner ranks them."""
