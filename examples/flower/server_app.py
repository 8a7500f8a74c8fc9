"""The ServerApp: coordinates the run; it has neither model nor data."""

from pathlib import Path

from fedseed.flower import server_app

app = server_app(Path(__file__).with_name("recipe.toml"))
