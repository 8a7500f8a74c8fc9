"""Writes small data sets of the papers' text tasks in their original files: SuperGLUE, SNLI, SQuAD,
SST, TREC.
"""

import json


def table(columns, rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in (columns, *rows))


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def superglue(name, count, dev):
    """Rows of a SuperGLUE file with all the fields that the published ones have."""
    for i in range(count):
        text, yes, so = (
            f"{'dev' if dev else 'train'} text {i} says so.",
            i % 2 == 0,
            {"version": 1.1},
        )
        entails, span = (
            ("entailment", "contradiction", "neutral")[i % 3],
            {"span2_index": 9, "span1_index": 5},
        )
        answers = [{"text": "so", "idx": 0, "label": 1}, {"text": "no", "idx": 1, "label": 0}]
        ann, bob, rome = (
            {"start": start, "end": end} for start, end in ((0, 2), (8, 10), (15, 18))
        )
        named = (
            [{**bob, "text": "Bob"}, {**rome, "text": "Rome"}] if yes else [{**ann, "text": "Ann"}]
        )
        story = f"Ann met Bob in Rome {i}.\n@highlight\nBob is {text}\n@highlight\nAnn left"
        yield {
            "rte": {
                "premise": text,
                "hypothesis": f"It is {i}.",
                "label": ("entailment", "not_entailment")[i % 2],
            },
            "cb": {"premise": text, "hypothesis": f"it is {i}", "label": entails},
            "boolq": {"question": f"is it number {i}", "passage": text, "label": yes},
            "wsc": {
                "text": f"{text} Mark told Pete lies.",
                "label": yes,
                "target": {**span, "span1_text": "Mark", "span2_text": "He"},
            },
            "wic": {
                "word": "place",
                "sentence1": f"A place {i}.",
                "sentence2": text,
                "label": yes,
                **so,
                "start1": 2,
                "start2": 0,
                "end1": 7,
                "end2": 3,
            },
            "multirc": {
                **so,
                "passage": {
                    "text": text,
                    "questions": [
                        {"question": f"What is number {i}?", "answers": answers, "idx": 0}
                    ],
                },
            },
            "copa": {
                "premise": text,
                "choice1": f"It rained {i} times.",
                "choice2": "I was out.",
                "question": ("cause", "effect")[i % 2],
                "label": i % 2,
            },
            "record": {
                "source": "Daily mail",
                "passage": {"text": story, "entities": [ann, bob, rome]},
                "qas": [{"query": f"@placeholder was seen {i} times", "answers": named, "idx": i}],
            },
        }[name] | {"idx": i}


def squad(count, dev):
    name = "dev" if dev else "train"

    def question(i):
        answers = [
            {"text": f"the {name} {i}", "answer_start": 0},
            {"text": f"{name} {i}", "answer_start": 4},
        ]
        return {
            "id": f"{name}{i}",
            "question": f" What is number {i}?",
            "answers": answers[: 1 + dev],
        }

    def article(a):
        about = (
            {"context": f"the {name} {i} is here", "qas": [question(i), question(i + 1)]}
            for i in range(a, count, 6)
        )
        return {"title": f"Article_{a}", "paragraphs": list(about)}

    return json.dumps({"data": [article(a) for a in (0, 2, 4)], "version": "1.1"})


def drop(count, dev):
    date = {"day": "", "month": "", "year": ""}
    none = {"number": "", "date": date, "spans": []}
    may = {"day": "4", "month": "May", "year": "1901"}
    kinds = ({**none, "number": "3"}, {**none, "date": may}, {**none, "spans": ["Ann", "Bob"]})

    def pair(p, i):
        validated = [{**none, "spans": [f"about {i}"]}, kinds[i]] if dev else []
        asked = {"question": f"How many in {p}, {i}? ", "query_id": f"{p}-{i}"}
        return {**asked, "answer": kinds[i], "validated_answers": validated}

    def passage(p):
        about = {
            "passage": f"{'dev' if dev else 'train'} passage {p}",
            "wiki_url": "https://example.org",
        }
        return {**about, "qa_pairs": [pair(p, i) for i in range(3)]}

    return json.dumps({f"nfl_{p}": passage(p) for p in range(count // 3)})


def inference(rows, labels):
    """Rows of SNLI or MNLI as their jsonl files have them; every seventh without a label."""
    for i in range(rows):
        label = "-" if i % 7 == 6 else labels[i % 3]
        yield {
            "annotator_labels": [label],
            "gold_label": label,
            "pairID": f"{i}.jpg#0r1e",
            "sentence1": f"A man is number {i}.",
            "sentence1_binary_parse": "( A man )",
            "sentence2": f"Somebody counts to {i}.",
        }


def mnli(count, votes):
    columns = [
        "index",
        "promptID",
        "pairID",
        "genre",
        "sentence1_binary_parse",
        "sentence2_binary_parse",
    ]
    columns += ["sentence1_parse", "sentence2_parse", "sentence1", "sentence2"]
    columns += [f"label{v}" for v in range(1, votes + 1)] + ["gold_label"]
    rows = []
    for i, row in enumerate(inference(count, ("contradiction", "entailment", "neutral"))):
        fields = [i, "31193", row["pairID"], "fiction", "( A )", "( S )", "(ROOT A)", "(ROOT S)"]
        rows.append(
            [*fields, row["sentence1"], row["sentence2"], *[row["gold_label"]] * (votes + 1)]
        )
    return table(columns, rows)


def original(name, part, count):
    """The texts of a part, "train" or "dev", by the names of their files."""
    dev = part == "dev"
    entailed = ("entailment", "not_entailment")
    if name in ("sst2", "sst2-mask"):  # the original's train sentences end in a space
        rows = [(f"{part} film {i} is so-so{'' if dev else ' '}", i % 2) for i in range(count)]
        return {
            f"{part}.tsv": table(("sentence", "label"), rows),
            "test.tsv": "index\tsentence\n0\tno label here\n",
        }
    if name == "squad":
        return {f"{part}-v1.1.json": squad(count, dev)}
    if name == "drop":
        return {f"drop_dataset_{part}.json": drop(count, dev)}
    if name == "snli":
        return {
            f"snli_1.0_{part}.jsonl": jsonl(
                inference(count, ("entailment", "neutral", "contradiction"))
            )
        }
    if name == "mnli":
        votes = {"dev_matched": 5, "dev_mismatched": 5} if dev else {"train": 1}
        return {f"{file}.tsv": mnli(count, each) for file, each in votes.items()}
    if name == "rte-mask":
        rows = [
            (i, f'No "weapons" {i}.', f"Weapons {part} found.", entailed[i % 2])
            for i in range(count)
        ]
        return {f"{part}.tsv": table(("index", "sentence1", "sentence2", "label"), rows)}
    if name == "sst5":
        tree, file = (
            "({0} (2 It) ({0} (2 -LRB-) (3 {1}{2}) (2 -RRB-)))\n",
            "test" if dev else "train",
        )
        return {f"{file}.txt": "".join(tree.format(i % 5, file, i) for i in range(count))}
    if name == "trec":
        labels = ("DESC:manner", "ENTY:cremat", "ABBR:exp", "HUM:ind", "LOC:city", "NUM:date")
        asked = "".join(f"{labels[i % 6]} What is the café number {i} ?\n" for i in range(count))
        return {"TREC_10.label" if dev else "train_5500.label": asked}
    return {f"{'val' if dev else 'train'}.jsonl": jsonl(superglue(name, count, dev))}


def write_original(name, folder, train=60, dev=20):
    """Write a small data set in its original files, of so many rows (of DROP and SQuAD: about).

    Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in (original(name, "train", train) | original(name, "dev", dev)).items():
        (folder / file).write_text(text, encoding="latin-1" if name == "trec" else "utf-8")
    return folder
