"""The plan with the least redundant memory, as an integer linear program and by the search."""
