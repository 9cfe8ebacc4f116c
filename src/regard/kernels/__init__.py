"""Fused kernels: `cpu/` (numba and oneDNN) and `cuda/` (Triton and cuBLASLt). Each is tested against plain PyTorch.

Nothing in here knows a model. `dispatch.py` says which kernels this machine can run; import it first, since the kernels
themselves import numba or Triton.
"""
