"""Every data set of MeZO's two suites, from a small file in the original format."""

from collections import Counter

import pytest

from fedseed.errors import RecipeError
from fedseed.registry import name_of
from fedseed.tasks import CLOZE, MEZO
from fedseed.tasks.data import MASK, Choice, Cloze, Example

TASKS = {name_of(task): task for task in (*MEZO, *CLOZE)}
OPT = [name_of(task) for task in MEZO]
SIZES = {"examples": 24, "validation": 6, "evaluation": 9}
FEW = {"k": 3, "evaluation": 9}


def task(name, folder, **changed):
    sizes = SIZES if name in OPT else FEW
    return TASKS[name](path=str(folder), **{**sizes, **changed})


@pytest.mark.parametrize("name", TASKS)
def test_loads_splits_and_deals(name, original):
    data = task(name, original(name)).load()
    assert data == task(name, original(name)).load()
    assert data.clients != task(name, original(name), seed=1).load().clients
    held = [example for client in data.clients for example in client.examples]
    assert len(data.clients) == 5 and all(client.examples for client in data.clients)
    kind = Cloze if name not in OPT else Example if name in ("squad", "drop") else Choice
    assert {type(example) for example in [*held, *data.evaluation[""]]} == {kind}
    assert not set(held) & set(data.validation)
    if name in OPT:
        assert (len(held), len(data.validation)) == (24, 6)
    else:
        for part in (held, data.validation):
            counts = Counter(example.gold for example in part)
            assert set(counts.values()) == {3} and len(counts) == len(held[0].words)
    assert len(data.evaluation[""]) == 9
    tuning = task(name, original(name), evaluate_on="validation").load()
    assert tuning.evaluation == {"": data.validation} and tuning.clients == data.clients


# -- what a row becomes
# --------------------------------------------------------------------------------------------


def first(name, folder, text=None, file=None):
    """The examples of the train file, or of a text in its place."""
    found = TASKS[name](path=str(folder))
    if text is not None:
        (folder / (file or found.train_files[0])).write_text(text)
    return [row.example for row in found._read_file(folder, found.train_files)[0]]


NLI = (" Yes", " Maybe", " No")
PROMPTS = {
    "sst2": Choice("train film 0 is so-so It was", (" terrible", " great"), 0),
    "rte": Choice(
        'train text 0 says so.\nDoes this mean that "It is 0." is true? Yes or No?\n',
        ("Yes", "No"),
        0,
    ),
    "cb": Choice(
        'Suppose train text 0 says so. Can we infer that "it is 0"? Yes, No, or Maybe?\n',
        ("Yes", "No", "Maybe"),
        0,
    ),
    "boolq": Choice("train text 0 says so. Is it number 0?\n", ("Yes", "No"), 0),
    "wsc": Choice(
        "train text 0 says so. Mark told Pete lies.\nIn the previous sentence, does the pronoun "
        '"He" refer to Mark? Yes or No?\n',
        ("No", "Yes"),
        1,
    ),
    "wic": Choice(
        'Does the word "place" have the same meaning in these two sentences? Yes, No?\nA place 0.\n'
        "train text 0 says so.\n",
        ("No", "Yes"),
        1,
    ),
    "multirc": Choice(
        'train text 0 says so.\nQuestion: What is number 0?\nI found this answer "so". Is that '
        "correct? Yes or No?\n",
        ("No", "Yes"),
        1,
    ),
    "copa": Choice(
        "train text 0 says so because",
        (" it rained 0 times.", " I was out."),
        0,
        teacher_forcing=True,
    ),
    "record": Choice(
        "Ann met Bob in Rome 0.\n- Bob is train text 0 says so.\n- Ann left\n-",
        (" Ann was seen 0 times", " Bob was seen 0 times", " Rome was seen 0 times"),
        1,
        (1, 2),
        True,
    ),
    "squad": Example(
        "Title: Article_0\nContext: the train 0 is here\nQuestion: What is number 0?\nAnswer:",
        " the train 0",
        ("the train 0",),
        "\n",
    ),
    "drop": Example(
        "Passage: train passage 0\nQuestion: How many in 0, 0?\nAnswer:", " 3", ("3",), "\n"
    ),
    "sst2-mask": Cloze(f"train film 0 is so-so It was {MASK}.", (" terrible", " great"), 0),
    "sst5": Cloze(
        f"It ( train0 ) It was {MASK}.", (" terrible", " bad", " okay", " good", " great"), 0
    ),
    "snli": Cloze(f"A man is number 0.? {MASK}, Somebody counts to 0.", NLI, 0),
    "mnli": Cloze(f"A man is number 0.? {MASK}, Somebody counts to 0.", NLI, 2),
    "rte-mask": Cloze(f'No "weapons" 0.? {MASK}, Weapons train found.', (" Yes", " No"), 0),
    "trec": Cloze(
        f"{MASK}: What is the café number 0 ?",
        (" Description", " Entity", " Expression", " Human", " Location", " Number"),
        0,
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_prompts_options_and_right_answers(name, original):
    assert first(name, original(name))[0] == PROMPTS[name]


def test_every_class_is_the_right_one(original):
    expected = {
        # entailment, true: Yes, the first option
        **dict.fromkeys(("rte", "rte-mask", "boolq", "copa"), [0, 1] * 3),
        **dict.fromkeys(("wsc", "wic"), [1, 0] * 3),  # true: Yes, the second one
        **dict.fromkeys(("cb", "snli"), [0, 1, 2] * 2),  # of snli: Yes, Maybe, No
        "multirc": [1, 0] * 6,
        "mnli": [2, 0, 1] * 2,
        "sst5": [0, 1, 2, 3, 4, 0],
        "trec": [0, 1, 2, 3, 4, 5],
    }
    found = {name: first(name, original(name, train=6)) for name in expected}
    assert {
        name: [example.gold for example in examples] for name, examples in found.items()
    } == expected


def test_answers_of_drop_and_squad(original):
    squad = task("squad", original("squad")).load().evaluation[""][0]
    assert squad.response == f" {squad.answers[0]}" and len(squad.answers) == 2
    drop = task("drop", original("drop", train=90, dev=90), evaluation=90).load().evaluation[""]
    assert {e.answers for e in drop} == {
        ("3", "about 0"),
        ("4 May 1901", "about 1"),
        ("Ann, Bob", "about 2"),
    }


def test_a_class_with_few_rows_gives_what_it_has(original):
    folder = original("trec", train=34)  # 6 of four classes, 5 of two
    data = task("trec", folder, k=4).load()
    held = Counter(e.gold for client in data.clients for e in client.examples)
    assert set(held.values()) == {4}
    assert sorted(Counter(e.gold for e in data.validation).values()) == [1, 1, 2, 2, 2, 2]
    few = "Description 6, Entity 6, Expression 6, Human 6, Location 5, Number 5"
    assert f"(fewer than 2 x 4 rows: {few})" in data.notes[0]
    (folder / "train_5500.label").write_text("DESC:x Why ?\n")
    with pytest.raises(RecipeError, match=r"the train file has no row of class 1 \(Entity\)"):
        task("trec", folder, k=4).load()


@pytest.mark.parametrize("name", ["sst5", "trec"])
def test_csv_files_without_a_header(name, tmp_path):
    for file in ("train.csv", "test.csv"):
        (tmp_path / file).write_text(
            "".join(f'{i % 5},"text {i}, ""quoted"""\n' for i in range(30))
        )
    found = first(name, tmp_path)
    assert 'text 1, "quoted"' in found[1].text and found[1].gold == 1
    with pytest.raises(RecipeError, match=r"train.csv line 2: \"label\" = '7': "):
        first(name, tmp_path, "0,a\n7,b\n", "train.csv")
    with pytest.raises(
        RecipeError, match=r"train.csv line 1: found 3 columns, expected 2: label, text"
    ):
        first(name, tmp_path, "0,a,b\n", "train.csv")


WRONG = [
    (
        "rte",
        '{"premise": "a", "hypothesis": "b", "label": "maybe"}',
        "line 1: \"label\" = 'maybe': expected entailment, not_e",
    ),
    (
        "boolq",
        '{"passage": "a", "question": "b", "label": "perhaps"}',
        "expected false, true, 0 or 1",
    ),
    (
        "wsc",
        '{"text": "a", "target": "He", "label": true}',
        "\"target\" = 'He': expected a JSON object",
    ),
    (
        "wsc",
        '{"text": "a", "target": {"span1_text": "b"}, "label": true}',
        'line 1: target: no "span2_text"',
    ),
    (
        "multirc",
        '{"passage": {"text": "a", "questions": [{"question": "b", "answers": [3]}]}}',
        r"passage: questions\[0\]: answers\[0\]: expected a JSON object, not 3",
    ),
    (
        "copa",
        '{"premise": "a", "choice1": "b", "choice2": "c", "question": "why", "label": 0}',
        "cause or effect",
    ),
    (
        "copa",
        '{"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": true}',
        "label",
    ),
    (
        "record",
        '{"passage": {"text": "abc", "entities": [{"start": 0, "end": 3}]}, "qas": [{}]}',
        "0 to 3 is outside",
    ),
    (
        "record",
        '{"passage": {"text": "abc", "entities": []}, "qas": [{"query": "", "answers": []}]}',
        "no usable row",
    ),
    ("squad", "[]", "train-v1.1.json: expected a JSON object"),
    (
        "squad",
        '{"data": [{"title": "a", "paragraphs": [{"qas": [{}]}]}]}',
        r'paragraphs\[0\]: qas\[0\]: no "context"',
    ),
    (
        "drop",
        '{"nfl_1": {"passage": "a", "qa_pairs": [{"question": "b"}]}}',
        r'nfl_1: qa_pairs\[0\]: no "answer"',
    ),
    (
        "sst5",
        "3 It works",
        r"train.txt line 1: expected a tree, such as \(3 \(2 It\) \(4 works\)\)",
    ),
    ("trec", "DESC How", "line 1: expected a class, a colon, a finer class and a question"),
    ("trec", "ODD:x How", "\"label\" = 'ODD': expected DESC, ENTY"),
    ("sst2-mask", f"sentence\tlabel\na {MASK} b\t1", "line 2: its text has <mask> in it"),
]


@pytest.mark.parametrize(("name", "text", "message"), WRONG)
def test_what_is_wrong_is_named(name, text, message, original):
    with pytest.raises(RecipeError, match=message):
        first(name, original(name), text + "\n")


def test_a_missing_file_is_named_with_what_to_do(original):
    folder = original("cb")
    found = task("cb", folder)
    (folder / found.train_files[0]).unlink()
    with pytest.raises(
        RecipeError, match=rf"the folder does not have {found.train_files[0]}.*; give "
    ):
        found.load()


# -- SST-2, and what all have of it
# ----------------------------------------------------------------------------------


def test_mezos_prompt_and_words(original):
    folder = original("sst2")
    (folder / "dev.tsv").write_text(
        'sentence\tlabel\n"quoted" , \u2028and odd \t1\nbad . \t0\n', encoding="utf-8"
    )
    found = {choice.gold: choice.prompt for choice in task("sst2", folder).load().evaluation[""]}
    assert found == {0: "bad . It was", 1: '"quoted" , \u2028and odd It was'}
