import pytest


@pytest.fixture
def elsewhere(monkeypatch):
    """W&B stays on this machine."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
