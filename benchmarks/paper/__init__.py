"""The evaluation of the PrimePar paper (Wang et al., ASPLOS 2024), and the same by this planner."""
