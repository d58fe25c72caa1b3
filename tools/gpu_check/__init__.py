"""Checks of the Metal kernels on a machine with an NVIDIA GPU, prepared on one without."""
