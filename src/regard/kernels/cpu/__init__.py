"""Kernels for a CPU: compiled by numba, or called from oneDNN."""
