"""What a model costs to train and to run, known before it is trained."""

from regard.cost.effort import Effort, Precision
from regard.cost.estimate import USABLE, Cost, Work, advice_for_memory, estimate, workspace_bytes
from regard.cost.hardware import HARDWARE, Hardware, this_hardware
from regard.cost.report import Report

__all__ = [
    "HARDWARE",
    "USABLE",
    "Cost",
    "Effort",
    "Hardware",
    "Precision",
    "Report",
    "Work",
    "advice_for_memory",
    "estimate",
    "this_hardware",
    "workspace_bytes",
]
