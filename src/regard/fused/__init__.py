"""The models of `model/` on fused kernels: the same results up to rounding, several times as fast.

A fused model stands beside the plain one and is never a flag inside it. It shares or copies the plain model's weights,
gives the reason if a model is not supported (`support.py`), and is tested against the plain one. `cpu_decoder.py` and
`cuda_decoder.py` decode on a CPU and on a GPU; `training.py` trains on both.
"""
