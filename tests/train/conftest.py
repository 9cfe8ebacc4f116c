"""Makes the trainer's tests fast."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _no_tensorboard_and_no_fsync(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorBoard and without waiting for the disk, neither of which these tests are about."""
    if request.module.__name__.rpartition(".")[2] in ("test_trainer", "test_resume", "test_policies"):
        monkeypatch.setitem(sys.modules, "tensorboard", None)
        monkeypatch.setattr("os.fsync", lambda handle: None)
