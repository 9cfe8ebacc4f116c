"""Kernels for an NVIDIA GPU: written in Triton, or called from cuBLASLt.

With the environment variable TRITON_INTERPRET=1 the Triton kernels run on a CPU, slowly, which is how they are tested.
"""
