"""The cost of training and running a model, estimated before it is trained."""

from regard.cost.advice import USABLE_MEMORY, memory_advice
from regard.cost.estimate import Cost, estimate
from regard.cost.hardware import HARDWARE, Hardware, detect_hardware
from regard.cost.memory import workspace_bytes
from regard.cost.op_cost import OpCost, Precision
from regard.cost.report import Report
from regard.cost.setup import LossKernel, TrainingSetup
from regard.cost.workload import BatchShape, Workload

__all__ = [
    "HARDWARE",
    "USABLE_MEMORY",
    "BatchShape",
    "Cost",
    "Hardware",
    "LossKernel",
    "OpCost",
    "Precision",
    "Report",
    "TrainingSetup",
    "Workload",
    "detect_hardware",
    "estimate",
    "memory_advice",
    "workspace_bytes",
]
