"""The registry of named datasets: what each one is, where it is on this machine, and how to get it."""

from regard.data.registry.cache import cache_folder, locked_folder
from regard.data.registry.check import DatasetCheck, check_all_datasets, check_dataset
from regard.data.registry.datasets import DatasetFile, DatasetInfo, dataset_info, list_datasets
from regard.data.registry.download import DownloadError
from regard.data.registry.fetch import FileProgress, get_dataset
from regard.data.registry.locate import Availability, Location, find_dataset, is_obtainable, locate_dataset

__all__ = [
    "Availability",
    "DatasetCheck",
    "DatasetFile",
    "DatasetInfo",
    "DownloadError",
    "FileProgress",
    "Location",
    "cache_folder",
    "check_all_datasets",
    "check_dataset",
    "dataset_info",
    "find_dataset",
    "get_dataset",
    "is_obtainable",
    "list_datasets",
    "locate_dataset",
    "locked_folder",
]
