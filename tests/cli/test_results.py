"""From a run to a model in one's hands: export, evaluate, generate; one small run of each kind."""

import asyncio
import copy
import io
import json
import shlex
import shutil
import signal
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedseed import FedAvg, Federation, Orbit, ParameterSpace
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model, locate
from fedseed.objectives.generation import Writer
from fedseed.runs.folder import RunFolder
from support.command import fedseed, refused, well
from support.hub import Hub
from support.instruction_files import write_lines

pytestmark = pytest.mark.long  # real runs, exported

RECIPE = """
rounds = 3
seed = 5
model.base = "{base}"
task = {{name = "files", path = "data"}}
evaluation = {{every = 1, max_new_tokens = 2}}
[method]
name = "{method}"
{settings}
"""
FERRET = (
    "directions = 64\n[method.training]\nlearning_rate = 0.02\nbatch = 4\naccumulation = "
    "1\nsteps = 1"
)
ADAM = (
    "[method.training]\noptimizer = 'adam'\nlearning_rate = {}\nbatch = 4\naccumulation = "
    "1\nsteps = 1"
)
KINDS = {"ferret": FERRET, "fedavg": ADAM.format(1e-3), "fedit": ADAM.format(1e-2)}
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of somebody's: data of two clients, a copy of a base beside it, a finished run of
    each kind.
    """
    folder = tmp_path_factory.mktemp("place")
    for name in ("north", "south"):
        rows = [{"prompt": f"Say {name} {i}.", "completion": f"{name}{i}"} for i in range(10)]
        write_lines(folder / "data" / f"{name}.jsonl", rows)
    shutil.copytree(locate("small"), folder / "bases" / "mine")
    for method, settings in KINDS.items():
        text = RECIPE.format(
            method=method, settings=settings, base="bases/mine" if method == "ferret" else "small"
        )
        (folder / f"{method}.toml").write_text(text)
        well("run", f"{method}.toml", "--out", f"runs/{method}", "--threads", 1, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def exported(place, tmp_path_factory):
    """The exported folder of each kind, written from elsewhere than where the run was made."""
    out = tmp_path_factory.mktemp("exported")
    for method in KINDS:
        done = well("export", place / "runs" / method, "--out", out / method, cwd=out)
        assert summary(place, method)["weights_digest"] in done.stdout
    return out


def summary(place, method):
    return json.loads((place / "runs" / method / "summary.json").read_text())


def measured(*words, cwd=None):
    return json.loads(well("evaluate", *words, "--json", cwd=cwd).stdout)


@pytest.mark.parametrize("method", ["ferret", "fedavg"])
def test_an_exported_run_loads_in_transformers_with_the_runs_bits(place, exported, method):
    model = AutoModelForCausalLM.from_pretrained(exported / method)
    assert ParameterSpace(model, "packed").digest() == summary(place, method)["weights_digest"]
    assert AutoTokenizer.from_pretrained(exported / method).eos_token_id is not None
    assert (exported / method / "generation_config.json").is_file()
    # by the umask, weights too
    assert len({path.stat().st_mode for path in (exported / method).iterdir()}) == 1
    assert not any(path.name.startswith(".") for path in (exported / method).iterdir())


def test_an_exported_adapter_loads_in_peft_and_merged_it_is_a_model(
    place, exported, tmp_path, small
):
    from peft import PeftModel

    base, tokenizer = small
    ids = tokenizer("Say north 3.", return_tensors="pt")["input_ids"]
    adapted = PeftModel.from_pretrained(copy.deepcopy(base), exported / "fedit").eval()
    well("export", place / "runs" / "fedit", "--merge", "--out", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        wanted = adapted(ids).logits
        assert torch.allclose(merged(ids).logits, wanted, atol=1e-4)
        assert not torch.allclose(base(ids).logits, wanted, atol=1e-2)  # it has learnt something
    assert AutoTokenizer.from_pretrained(exported / "fedit").eos_token_id == tokenizer.eos_token_id
    refused(
        2,
        "only a LoRA adapter",
        "export",
        place / "runs" / "fedavg",
        "--merge",
        "--out",
        tmp_path / "none",
    )
    assert not (tmp_path / "none" / "config.json").exists()


def test_the_best_round_and_rounds_before_the_last(place, tmp_path):
    lines = [
        json.loads(t)
        for t in (place / "runs" / "ferret" / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["loss"] for line in lines]
    best = losses.index(min(losses))
    assert summary(place, "ferret")["best"]["loss"] == {"round": best, "value": min(losses)}
    done = well("export", place / "runs" / "ferret", "--best", "loss", "--out", tmp_path / "best")
    assert lines[best]["weights_digest"] in done.stdout
    done = well(
        "export", place / "runs" / "ferret" / "model.orbit", "--upto", 1, "--out", tmp_path / "one"
    )
    assert lines[1]["weights_digest"] in done.stdout
    card = (tmp_path / "one" / "README.md").read_text()
    assert "| rounds | 1 of 3 |" in card and "--upto 1" in card and f"{losses[1]:.4g} |" in card
    for words, text in (
        (["fedavg", "--upto", 1], "keeps only its newest weights, which are those of round 3"),
        (
            ["ferret", "--best", "beauty"],
            "--best beauty: the run has measured loss, perplexity, rouge_l",
        ),
        (["ferret", "--best", "loss", "--upto", 1], "--best or --upto, not both"),
    ):
        refused(2, text, "export", place / "runs" / words[0], *words[1:], "--out", tmp_path / "no")
        assert not (tmp_path / "no").exists()


def test_sources_that_are_none(place, exported, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.orbit").write_text("no orbit")
    data = bytearray((place / "runs" / "fedavg" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(data)
    for source, code, text in (
        (tmp_path / "empty", 2, "holds no run"),
        (tmp_path / "text.orbit", 2, "not an orbit and not"),
        (tmp_path / "none.orbit", 2, "no such folder or file"),
        (exported / "ferret", 2, "is a model already"),
        (exported / "ferret" / "model.safetensors", 1, "does not name its run"),
        (tmp_path / "model.safetensors", 1, "the weights do not match the digest"),
    ):
        refused(code, text, "export", source, "--out", tmp_path / "no")
    refused(
        1,
        "holds a model already",
        "export",
        place / "runs" / "ferret",
        "--out",
        exported / "ferret",
    )


# -- evaluate
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(KINDS))
def test_evaluation_gives_what_the_run_measured(place, exported, method):
    found = measured(place / "runs" / method, cwd=place)
    assert found["metrics"]["files"] == pytest.approx(summary(place, method)["final"], rel=1e-5)
    assert (
        found["round"] == 3 and found["weights_digest"] == summary(place, method)["weights_digest"]
    )
    again = measured(exported / method, "--recipe", place / f"{method}.toml", cwd=place)
    assert again["metrics"]["files"] == pytest.approx(summary(place, method)["final"], rel=1e-4)


# -- generate
# ------------------------------------------------------------------------------------------------


def test_generation(place, exported, tmp_path, monkeypatch):
    words = ["generate", place / "runs" / "fedavg", "--max-tokens", 6]
    said = well(*words, "Say north 3.")
    assert said.stdout.strip()
    (tmp_path / "prompt.txt").write_text("Say north 3.\n")
    assert fedseed(*words, "--file", tmp_path / "prompt.txt").stdout == said.stdout
    monkeypatch.setattr(sys, "stdin", io.StringIO("Say north 3.\n"))
    assert fedseed(*words).stdout == said.stdout
    drawn = [
        fedseed(*words, "Say north 3.", "--temperature", 3, "--seed", seed).stdout
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    (tmp_path / "prompts.jsonl").write_text(
        '{"prompt": "Say north 3."}\n{"prompt": "Say south 4."}\n'
    )
    done = fedseed(
        "generate", exported / "fedavg", "--max-tokens", 6, "--file", tmp_path / "prompts.jsonl"
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == ["Say north 3.", "Say south 4."]
    assert lines[0]["response"] == said.stdout.removesuffix("\n")


def test_a_conversation(place, exported, tmp_path, monkeypatch):
    """By the template; the model is told all turns so far."""
    refused(2, "has no chat template", "generate", exported / "fedavg", "Hello", "--chat")
    shutil.copytree(exported / "fedavg", tmp_path / "chat")
    config = json.loads((tmp_path / "chat" / "tokenizer_config.json").read_text())
    (tmp_path / "chat" / "tokenizer_config.json").write_text(
        json.dumps({**config, "chat_template": TEMPLATE})
    )
    seen, write = [], Writer.write

    def heard(self, ids, *more, **options):
        seen.append(self.tokenizer.decode(ids))
        return write(self, ids, *more, **options)

    monkeypatch.setattr(Writer, "write", heard)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nAgain\n\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    words = ["generate", tmp_path / "chat", "--chat", "--max-tokens", 3]
    talk = well(*words)
    assert seen[0] == "<user> Hello\n<assistant>"
    first = fedseed(*words, "Hello").stdout.removesuffix("\n")
    assert seen[1] == f"<user> Hello\n<assistant> {first}\n<user> Again\n<assistant>"
    assert talk.stdout.startswith(f"> {first}\n> ")


def test_what_can_not_be_evaluated_or_generated(place, exported, monkeypatch, image_base):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    long = "word " * 3000
    for words, code, text in (
        (["evaluate", exported / "ferret"], 2, "give --recipe, or --task NAME"),
        (["evaluate", "runs/ferret", "--task", "nothing"], 2, "--task nothing: choose one of"),
        (["evaluate", "runs/ferret", "--task", "digits"], 2, "needs an image classifier"),
        (["generate", "runs/ferret"], 2, "no prompt"),
        (["generate", "runs/ferret", "a", "--file", "b"], 2, "a PROMPT or --file"),
        (["generate", "runs/ferret", "--file", "none.txt"], 2, "none.txt: can't be read"),
        (["generate", "runs/ferret", long], 1, "positions: shorten the prompt"),
        (["generate", image_base("vit"), "a"], 2, "can't generate text"),
    ):
        refused(code, text, *words, cwd=place)


# -- bases and the hub
# ---------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch, tmp_path):
    made = Hub()
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield made
    made.close()


def test_a_base_of_a_relative_path_is_found_again(place, tmp_path, hub):
    """Where it was; else beside the orbit, as the recipe has it.

    Else it is said at once how to name it.
    """
    orbit = place / "runs" / "ferret" / "model.orbit"
    header = Orbit.open(orbit).header
    assert header.base == "bases/mine" and header.base_folder == str(place / "bases" / "mine")
    moved = tmp_path / "elsewhere"
    shutil.copytree(place, moved)
    aside = place / "aside"
    (place / "bases").rename(aside)
    try:
        well("export", moved / "runs" / "ferret", "--out", tmp_path / "found", cwd=tmp_path)
        for command in (["export"], ["orbit", "replay"]):
            done = fedseed(*command, orbit, "--out", tmp_path / "lost", cwd=tmp_path)
            assert done.returncode == 2
            waiting, error = done.stderr.splitlines()
            assert "bases/mine is not a local folder: looking for it on the hub" in waiting
            assert "the hub has no model of this name" in error and "--base" in error
        well("export", orbit, "--base", aside / "mine", "--out", tmp_path / "named", cwd=tmp_path)
    finally:
        aside.rename(place / "bases")


def test_an_unknown_base_is_said_at_once(hub, monkeypatch):
    with pytest.raises(
        RecipeError, match=r'base = "nobody/one": there is no such folder, and the hub has no model'
    ):
        load_model("nobody/one")
    # asked once
    assert [path for _, path in hub.asked if "nobody/one" in path] == ["/api/models/nobody/one"]
    with pytest.raises(RecipeError, match="and this is not a valid name on the hub"):
        load_model("no body")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # nobody listens there
    with pytest.raises(RecipeError, match=r"nobody/two.*the hub can't be reached"):
        load_model("nobody/two")


# -- what a run leaves
# ---------------------------------------------------------------------------------------------


def test_ctrl_c_says_how_it_goes_on(place, tmp_path, monkeypatch):
    """A real SIGINT, once the first round's line is on disk.

    The command that is named goes on to the same bits.
    """
    added = RunFolder.add_metrics

    def add(self, line):
        added(self, line)
        if line.round == 1:
            signal.raise_signal(signal.SIGINT)

    words = [
        "run",
        "ferret.toml",
        "--out",
        tmp_path / "out",
        "--threads",
        1,
        "--set",
        "evaluation.rouge=false",
    ]
    monkeypatch.setattr(RunFolder, "add_metrics", add)
    done = fedseed(*words, cwd=place)
    monkeypatch.undo()
    wanted = shlex.join(["fedseed", *map(str, words), "--resume"])
    assert (done.returncode, done.stderr) == (
        130,
        f"fedseed: interrupted; continue with: {wanted}\n",
    )
    assert "resumed after round 1 of 3" in well(*words, "--resume", cwd=place).stdout
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["weights_digest"] == summary(place, "ferret")["weights_digest"]


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "ferret.toml", "--fresh", "--out", "runs/new"],
        ["join", "ferret.toml", "--client", "north"],
    ],
)
def test_ctrl_c_at_a_server_says_how_it_goes_on(place, monkeypatch, words):
    """A real SIGINT while it connects.

    What would begin again from nothing (--fresh) is not in what it says.
    """
    import nats

    async def connect(*args, **settings):
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()  # for what never comes

    monkeypatch.setattr(nats.NATS, "connect", connect)
    words = [*words, "--nats", "nats://127.0.0.1:1"]
    done = fedseed(*words, cwd=place)
    again = shlex.join(["fedseed", *(word for word in words if word != "--fresh")])
    assert (done.returncode, done.stderr) == (
        130,
        f"fedseed: interrupted; continue with: {again}\n",
    )


# -- Python
# ------------------------------------------------------------------------------------------------


def test_a_results_model_is_in_memory_or_made_of_the_files(place, monkeypatch, problem, quickly):
    dense = problem.federation(FedAvg(training=problem.training), rounds=1).run()
    assert ParameterSpace(dense.model).digest() == dense.summary["weights_digest"]
    monkeypatch.chdir(place)
    for method in ("ferret", "fedit"):
        result = Federation.from_file(f"{method}.toml", out=f"runs/{method}").run(resume=True)
        assert result.summary == summary(place, method)
        space = ParameterSpace(result.model, "packed" if method == "ferret" else "one")
        assert space.digest() == result.summary["weights_digest"]
