def rows_of(rank, step, devices):
    """Return the device whose rows device `rank` multiplies at a step, 0 to devices - 1."""
    return (rank + step) % devices
