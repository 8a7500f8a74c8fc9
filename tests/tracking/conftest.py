import pytest


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Services of others stay on this machine: W&B offline, MLflow's store in the test's folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)  # MLflow keeps files of a local store in the working folder
