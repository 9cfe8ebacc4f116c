"""The cost of training and running a model, estimated before it is trained."""

from regard.cost.advice import USABLE_MEMORY, check_model_fits, memory_advice
from regard.cost.estimate import Cost, estimate
from regard.cost.hardware import HARDWARE, Hardware, detect_hardware, device_memory, is_out_of_memory
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
    "check_model_fits",
    "detect_hardware",
    "device_memory",
    "estimate",
    "is_out_of_memory",
    "memory_advice",
    "workspace_bytes",
]
