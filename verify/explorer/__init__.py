"""Programs run state by state, without Z3: a second opinion."""
