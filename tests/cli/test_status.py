"""How a run over a network is going, for a person; and the lines that `fedseed keys` prints."""

import io
import shlex
from pathlib import Path

from rich.console import Console

from fedseed.cli.network import by_client, follow
from fedseed.reports.results import RoundLine
from fedseed.runs import costs
from support.command import refused, well

GOING = {
    "run": "r",
    "method": "ferret",
    "began": 0.0,
    "round": 0,
    "rounds": 9,
    "waiting_for": [],
    "clients": 3,
    "alive": 1,
    "away": ["south"],
    "waiting": {"here": 1, "wanted": 3},
    "last": {},
    "repeated_rounds": 0,
    "refusals": {},
    "drifted": [],
    "ended": False,
}
STARTED = {
    **GOING,
    "round": 4,
    "alive": 3,
    "away": [],
    "waiting": None,
    "waiting_for": ["north"],
    "late": ["east"],
    "last": {"round": 3, "evaluated": 2, "loss": 1.5},
}
GONE = {"run": "r", "entries": 12, "ended": False}


def test_watching_says_what_is_new_until_the_run_is_over():
    looks = iter([GOING, GOING, STARTED, GONE, {**GONE, "ended": True}])
    said = io.StringIO()
    follow(lambda: next(looks), Console(file=said, width=40), 0.0)
    assert said.getvalue().splitlines() == [
        "r (ferret): round 0 of 9, since 1970-01-01 00:00 UTC",
        "clients  1 of 3 alive; away: south",
        "waiting  1 of 3 clients are here; no round has begun",
        "r (ferret): round 4 of 9, since 1970-01-01 00:00 UTC",
        "clients  3 of 3 alive",
        "waiting  for north",
        "late     east: several times as long as the others",
        "held-out loss 1.5000 (round 2)",
        "r: no coordinator answers; the server holds its log (12 entries)",
        "r: no coordinator answers; the server holds its log (12 entries); the run is over",
    ]
    looks = iter([STARTED, {**STARTED, "ended": True}])
    screen = io.StringIO()
    follow(lambda: next(looks), Console(file=screen, force_terminal=True, width=80), 0.0)
    assert "round 4 of 9" in screen.getvalue()


def test_figures_of_a_client_that_was_away_at_the_end_say_of_when_they_are():
    lines = [
        RoundLine(
            number,
            by_client={name: {"held_out": 1, "loss": 4.0 / (number + 1)} for name in "ab"[:there]},
        )
        for number, there in ((0, 2), (1, 2), (3, 1))
    ]
    assert by_client(costs.by_client(lines)) == [
        "  a: held-out loss 4.000 -> 1.000 (1 examples)",
        "  b: held-out loss 4.000 -> 2.000 (1 examples; after round 1: it was absent at the end)",
    ]


def test_keys_for_a_recipe_prints_commands_as_they_are_typed(tmp_path):
    recipe = tmp_path / "wards of one.toml"
    recipe.write_text(
        'rounds = 1\n[task]\nname = "files"\n[federation]\nrun = "wards"\nclients = ["north", '
        '"south"]\n'
        '[method]\nname = "feedsign"\n'
    )
    out = tmp_path / "its keys"
    made = well("keys", recipe, "--out", out, "--host", "nats.example.org")
    lines = made.stdout.splitlines()
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    # as it is found, or that of a package
    assert Path(commands[0][0]).name == "nats-server"
    assert [[Path(words[0]).name, words[1]] for words in commands] == [
        ["nats-server", "-c"],
        ["fedseed", "serve"],
        *[["fedseed", "join"]] * 2,
        ["fedseed", "status"],
    ]
    serve, north = commands[1], commands[2]
    assert (
        str(recipe) in serve
        and str(out / "coordinator.nk") in serve
        and serve[serve.index("--run") + 1] == "wards"
    )
    assert {"north.nk", "ca.pem", "north.jsonl", "tls://nats.example.org:4222", recipe.name} <= set(
        north
    )
    assert (out / "north.nk").exists()
    refused(2, "--client NAME", "keys", "run", "--out", tmp_path / "more")
