"""The dense oracle: the same computations on one device, with NumPy."""
