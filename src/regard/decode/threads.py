"""Threads that each compute by themselves, side by side."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch


@lru_cache(maxsize=4)
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay: libraries prepare their products anew for every thread that asks."""
    return ThreadPoolExecutor(threads, "regard-search", initializer=torch.set_num_threads, initargs=(1,))
