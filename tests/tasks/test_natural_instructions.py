import pytest

from fedseed.errors import RecipeError
from fedseed.tasks.natural_instructions import NaturalInstructionsTask


def rows(count, text="x"):
    return [(f"{text} {i}", [f"answer {i}", "second"]) for i in range(count)]


def load(folder, **settings):
    return NaturalInstructionsTask(path=str(folder), **settings).load()


def refused(problem, folder, **settings):
    with pytest.raises(RecipeError, match=problem):
        load(folder, **settings)


def test_each_train_task_is_a_client_and_test_tasks_are_evaluated_on(natural_instructions):
    folder = natural_instructions(
        train={"task001_a": rows(100, "a"), "task002_b": rows(54, "b")},
        test={"task003_c": rows(40, "c"), "task004_d": rows(7, "d"), "task005_e": rows(1500, "e")},
    )
    data = load(folder)
    # 20%, floor
    assert [(c.name, len(c.examples)) for c in data.clients] == [
        ("task001_a", 20),
        ("task002_b", 10),
    ]
    counts = {
        letter: sum(f"\n{letter} " in e.prompt for e in data.evaluation[""]) for letter in "cde"
    }
    assert counts == {"c": 20, "d": 7, "e": 30}  # max(20, 2%), as far as there are so many
    example = data.clients[0].examples[0]
    number = example.response.removeprefix("answer ")  # the first output
    assert example.prompt == (
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\nDo what task001_a says.\n\n### Input:\na {number}\n\n### Response:"
    )
    texts = [
        e.prompt
        for part in (*(c.examples for c in data.clients), data.evaluation[""])
        for e in part
    ]
    assert len(set(texts)) == len(texts)  # nothing is drawn twice


def test_what_is_left_out_is_counted(natural_instructions):
    long = [("y" * 1024, ["no"])] * 6  # less than 1,024 characters, as the published code has it
    folder = natural_instructions(
        train={
            "task001_a": [("y" * 1023, ["yes"])] * 20 + long,
            "task002_b": rows(19),
            "task003_c": rows(19) + long,  # enough only with those that are too long
        },
        test={"task004_d": long, "task005_e": rows(3) + long[:1]},
    )
    data = load(folder)
    assert [c.name for c in data.clients] == ["task001_a"]
    assert len(data.clients[0].examples) == 4 and all(
        "y" * 1023 in e.prompt for e in data.clients[0].examples
    )
    train, test = data.notes
    assert (
        "2 of 3 tasks left out (fewer than 20 usable instances)" in train
        and "1 task gives 4 examples" in train
    )
    assert "12 of 70 instances left out (input of 1,024 characters or more)" in train
    assert "1 of 2 tasks left out" in test and "7 of 10 instances left out" in test
    refused("no usable data is left .*3 of 3 tasks left out", folder, max_input_chars=1)


def test_some_clients_and_a_validation_set(natural_instructions):
    train = {f"task{i:03d}_t": rows(100, f"t{i}") for i in range(8)}
    folder = natural_instructions(train=train, test={"task900_u": rows(30, "u")})
    everybody, some = load(folder), load(folder, clients=3)
    assert (
        len(everybody.clients) == 8
        and len(some.clients) == 3
        and some.notes[-1] == "3 clients of 8 train tasks"
    )
    # what is drawn of a task stays
    assert all(client in everybody.clients for client in some.clients)
    assert some.clients != load(folder, clients=3, seed=1).clients and not everybody.validation
    kept = load(folder, clients=3, validation=0.25)
    assert [len(c.examples) for c in kept.clients] == [15] * 3 and len(kept.validation) == 15
    held = {e.prompt for c in kept.clients for e in c.examples}
    assert not held & {e.prompt for e in kept.validation} and kept.evaluation == some.evaluation
    chosen = load(folder, clients=3, validation=0.25, evaluate_on="validation")
    assert chosen.evaluation == {"": kept.validation}
    refused("task.clients = 9: there is only data for 8 train tasks", folder, clients=9)
    refused("task.validation = 0 leaves no examples", folder, evaluate_on="validation")
    refused("leaves a client without examples", folder, validation=0.99)


def test_missing_and_unreadable_files_are_named(natural_instructions, tmp_path):
    refused(r"task.path = .*nowhere.*no such folder; .*v2.8", tmp_path / "nowhere")
    refused(r"train_tasks.txt: there is no such file; .*splits/default and tasks", tmp_path)
    folder = natural_instructions()
    (folder / "splits" / "default" / "test_tasks.txt").write_text("task900_test\ntask901_gone\n")
    refused(r"task901_gone.json: there is no such file; splits/default lists this task", folder)
    task = folder / "tasks" / "task001_copy.json"
    task.write_text(
        task.read_text().replace('"input"', '"put in"', 4).replace('"put in"', '"input"', 3)
    )
    refused(r'task001_copy.json: Instances\[2\]: no "input"', folder)
