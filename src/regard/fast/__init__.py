"""The models of `model/`, laid out for the hardware they run on: the same numbers to rounding, sooner.

A fast form is a twin beside the plain model and never a flag within it. It shares or copies the plain model's weights,
says in a sentence why it cannot stand for one (`why_not`), and is held against it by tests. `swift.py` and
`swift_gpu.py` write word after word on a CPU and on a GPU, `swift_training.py` trains on both.
"""
