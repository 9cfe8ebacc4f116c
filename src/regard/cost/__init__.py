"""What a model costs to train and to run, known before it is trained."""

from regard.cost.advice import USABLE, advice_for_memory
from regard.cost.effort import Effort, Precision
from regard.cost.estimate import Cost, estimate
from regard.cost.hardware import HARDWARE, Hardware, this_hardware
from regard.cost.memory import workspace_bytes
from regard.cost.report import Report
from regard.cost.work import Work

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
