"""The cost of training and running a model, estimated before it is trained."""

from regard.cost.advice import USABLE_MEMORY, check_model_fits, memory_advice
from regard.cost.estimate import Cost, estimate
from regard.cost.formulas import Formula, formula_of
from regard.cost.growth import Growth
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
    "Formula",
    "Growth",
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
    "formula_of",
    "is_out_of_memory",
    "memory_advice",
    "workspace_bytes",
]
