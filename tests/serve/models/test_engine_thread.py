"""An engine on one core leaves all cores to the threads that start after it."""

import threading

import torch

from regard.decode import Engine
from regard.serve.models.engine_thread import EngineThread
from tests.look.support import autoregressive_model


def test_other_threads_keep_all_cores() -> None:
    before, found = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:
        engine = EngineThread(Engine(autoregressive_model().model, 2), print, cores=1)
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        engine.close()
        assert [*found, torch.get_num_threads()] == [3, 3]
    finally:
        torch.set_num_threads(before)
