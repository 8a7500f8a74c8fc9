"""The ClientApp: trains for the clients of its node."""

from pathlib import Path

from fedseed.flower import client_app

app = client_app(Path(__file__).with_name("recipe.toml"))
