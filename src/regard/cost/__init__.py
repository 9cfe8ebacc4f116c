"""What a model costs to train, known before it is trained."""

from regard.cost.estimate import USABLE, Cost, Work, advice_for_memory, estimate
from regard.cost.hardware import HARDWARE, Hardware, this_hardware

__all__ = ["HARDWARE", "USABLE", "Cost", "Hardware", "Work", "advice_for_memory", "estimate", "this_hardware"]
