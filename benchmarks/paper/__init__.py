"""The evaluation of the PrimePar paper (Wang et al., ASPLOS 2024), reproduced by this planner."""
