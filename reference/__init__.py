"""Pure NumPy: the dense one-device oracle, the emulated devices and the executor of programs."""
