"""Runs on chats, from files of chats to a model that answers, by the chat templates of three
families.
"""

import pytest

from fedseed import Federation
from fedseed.objectives.generation import generate
from fedseed.recipe.reading import read_recipe
from support.chat_bases import END_OF_TURN, chat_base
from support.heard import Heard
from support.instruction_files import write_clients
from support.tiers import mark

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid"}
METHODS = {
    "fedavg": 'name = "fedavg"\n[method.training]\noptimizer = "adamw"\nlearning_rate = '
    "0.01\nsteps = 15\nbatch = 9",
    "ferret": 'name = "ferret"\ndirections = 100\n[method.training]\nlearning_rate = 0.1\nsteps = '
    "2\nbatch = 6",
}


def chats(count):
    rows = []
    for i in range(count):
        (first, capital), (second, other) = (list(CAPITALS.items())[(i + k) % 3] for k in (0, 1))
        turns = [
            ("system", "Be short."),
            ("user", f"What is the capital of {first}?"),
            ("assistant", f"{capital}."),
            ("user", f"And of {second}?"),
            ("assistant", f"It is {other}."),
        ]
        rows.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    return rows


def recipe(folder, family, method="fedavg", rounds=2):
    chat_base(folder / "base", family)
    write_clients(folder / "chats", anna=chats(9), bert=chats(9))
    path = folder / "my.toml"
    path.write_text(
        f'rounds = {rounds}\n[model]\nbase = "{folder}/base"\n[task]\nname = "files"\npath = '
        f'"{folder}/chats"\n'
        f"[evaluation]\nevery = 4\nmax_new_tokens = 8\n[method]\n{METHODS[method]}"
    )
    return path


@pytest.mark.long
@pytest.mark.parametrize("family", mark(["qwen2", "gemma"], lambda family: family != "qwen2"))
def test_a_run_on_chats_ends_in_a_model_that_answers(tmp_path, quickly, family):
    run = Federation.from_file(recipe(tmp_path, family), ["rounds=4"])
    assert run.header.layout.size > 10_000
    result = run.run()
    assert result.summary["baseline"]["rouge_l"] < 50 < 90 < result.summary["final"]["rouge_l"]
    moved = [
        note
        for note in result.summary["data_notes"]
        if "system message moved into the first user message" in note
    ]
    assert bool(moved) == (family == "gemma")
    objective = run.worker.objective
    tokenizer, model = objective.tokenizer, run.worker.space.model
    example = read_recipe(tmp_path / "my.toml").task.load().clients[0].examples[0]
    prompt = objective.prepare([example])[0]
    ends = objective.ends_of(example)
    spoken = tokenizer.convert_tokens_to_ids(END_OF_TURN[family])
    assert ends == (() if spoken == tokenizer.eos_token_id else (spoken,))
    asked = prompt.ids[: prompt.response_start]
    assert generate(model, objective, [asked], 12, ends=ends) == [example.answers[0]]
    if ends:  # without them it would go on behind its answer
        assert len(generate(model, objective, [asked], 12)[0]) >= len(example.answers[0])


@pytest.mark.long
def test_a_client_without_a_usable_example_is_named_once_a_run(tmp_path, quickly):
    path = recipe(tmp_path, "llama", "ferret", rounds=3)
    long = [{"role": "user", "content": "a" * 400}, {"role": "assistant", "content": "b"}]
    write_clients(tmp_path / "chats", cem=[{"messages": long}])
    heard = Heard()
    result = Federation.from_file(path, ["evaluation.rouge=false"], progress=heard).run()
    assert [line for line in heard.said if "cem" in line] == [
        "1 of 3 clients has no usable example and sends nothing: cem",
        "1 of the clients' examples left out (over the model's 256 positions); by client: cem 1",
    ]
    assert [line["skipped"] for line in result.metrics[1:]] == [
        [{"client": "cem", "reason": "no usable example"}]
    ] * 3
