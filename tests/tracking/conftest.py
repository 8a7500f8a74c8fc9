import pytest


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Services of others stay on this machine: W&B offline, MLflow's and Trackio's stores in the test's folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)  # MLflow keeps files of a local store in the working folder
