"""Writes small data sets of the papers' text tasks in their original files: SuperGLUE, SNLI, SQuAD, SST, TREC."""

import json


def write_sst2(folder, train=60, dev=20):
    """Write a folder in the form of GLUE's SST-2: a header, then sentence, tab, label."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, end in (("train", train, " "), ("dev", dev, "")):  # the original's train sentences end in a space
        rows = "".join(f"{name} film {i} is so-so{end}\t{i % 2}\n" for i in range(count))
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)
    (folder / "test.tsv").write_text("index\tsentence\n0\tno label here\n")
    return folder


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def superglue(name, count, dev):
    """Rows of a SuperGLUE file with all the fields that the published ones have."""
    for i in range(count):
        text, yes, so = f"{'dev' if dev else 'train'} text {i} says so.", i % 2 == 0, {"version": 1.1}
        entails, span = ("entailment", "contradiction", "neutral")[i % 3], {"span2_index": 9, "span1_index": 5}
        answers = [{"text": "so", "idx": 0, "label": 1}, {"text": "no", "idx": 1, "label": 0}]
        ann, bob, rome = ({"start": start, "end": end} for start, end in ((0, 2), (8, 10), (15, 18)))
        named = [{**bob, "text": "Bob"}, {**rome, "text": "Rome"}] if yes else [{**ann, "text": "Ann"}]
        story = f"Ann met Bob in Rome {i}.\n@highlight\nBob is {text}\n@highlight\nAnn left"
        yield {
            "rte": {"premise": text, "hypothesis": f"It is {i}.", "label": ("entailment", "not_entailment")[i % 2]},
            "cb": {"premise": text, "hypothesis": f"it is {i}", "label": entails},
            "boolq": {"question": f"is it number {i}", "passage": text, "label": yes},
            "wsc": {"text": f"{text} Mark told Pete lies.", "label": yes,
                    "target": {**span, "span1_text": "Mark", "span2_text": "He"}},
            "wic": {"word": "place", "sentence1": f"A place {i}.", "sentence2": text, "label": yes, **so,
                    "start1": 2, "start2": 0, "end1": 7, "end2": 3},
            "multirc": {**so, "passage": {"text": text, "questions": [
                {"question": f"What is number {i}?", "answers": answers, "idx": 0}]}},
            "copa": {"premise": text, "choice1": f"It rained {i} times.", "choice2": "I was out.",
                     "question": ("cause", "effect")[i % 2], "label": i % 2},
            "record": {"source": "Daily mail", "passage": {"text": story, "entities": [ann, bob, rome]},
                       "qas": [{"query": f"@placeholder was seen {i} times", "answers": named, "idx": i}]},
        }[name] | {"idx": i}  # fmt: skip


def squad(count, dev):
    name = "dev" if dev else "train"

    def question(i):
        answers = [{"text": f"the {name} {i}", "answer_start": 0}, {"text": f"{name} {i}", "answer_start": 4}]
        return {"id": f"{name}{i}", "question": f" What is number {i}?", "answers": answers[: 1 + dev]}

    def article(a):
        about = (
            {"context": f"the {name} {i} is here", "qas": [question(i), question(i + 1)]} for i in range(a, count, 6)
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
        about = {"passage": f"{'dev' if dev else 'train'} passage {p}", "wiki_url": "https://example.org"}
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


def write_original(name, folder, train=60, dev=20):
    """Write a small data set in its original files; returns the folder.

    Args:
        name: the task's name.
        folder: to write into.
        train, dev: rows of the train file, and of the file with test examples (of DROP and SQuAD: about so many).
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = ((train, False), (dev, True))
    if name in ("sst2", "sst2-mask"):
        return write_sst2(folder, train, dev)
    if name in ("squad", "drop"):
        files = {"squad": "{}-v1.1.json", "drop": "drop_dataset_{}.json"}[name]
        make = {"squad": squad, "drop": drop}[name]
        texts = {files.format("dev" if is_dev else "train"): make(count, is_dev) for count, is_dev in parts}
    elif name == "snli":
        labels = ("entailment", "neutral", "contradiction")
        texts = {f"snli_1.0_{part}.jsonl": jsonl(inference(n, labels)) for n, part in ((train, "train"), (dev, "dev"))}
    elif name == "mnli":
        texts = {}
        for count, part, votes in ((train, "train", 1), (dev, "dev_matched", 5), (dev, "dev_mismatched", 5)):
            columns = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"]
            columns += ["sentence1_parse", "sentence2_parse", "sentence1", "sentence2"]
            columns += [f"label{v}" for v in range(1, votes + 1)] + ["gold_label"]
            lines = ["\t".join(columns)]
            for i, row in enumerate(inference(count, ("contradiction", "entailment", "neutral"))):
                label = row["gold_label"]
                fields = [str(i), "31193", row["pairID"], "fiction", "( A )", "( S )", "(ROOT A)", "(ROOT S)"]
                lines.append("\t".join([*fields, row["sentence1"], row["sentence2"], *[label] * votes, label]))
            texts[f"{part}.tsv"] = "\n".join(lines) + "\n"
    elif name == "rte-mask":
        texts = {}
        for count, part in ((train, "train"), (dev, "dev")):
            labels = ("entailment", "not_entailment")
            rows = "".join(f'{i}\tNo "weapons" {i}.\tWeapons {part} found.\t{labels[i % 2]}\n' for i in range(count))
            texts[f"{part}.tsv"] = "index\tsentence1\tsentence2\tlabel\n" + rows
    elif name == "sst5":
        tree = "({0} (2 It) ({0} (2 -LRB-) (3 {1}{2}) (2 -RRB-)))\n"
        texts = {
            f"{part}.txt": "".join(tree.format(i % 5, part, i) for i in range(count))
            for count, part in ((train, "train"), (dev, "test"))
        }
    elif name == "trec":
        labels = ("DESC:manner", "ENTY:cremat", "ABBR:exp", "HUM:ind", "LOC:city", "NUM:date")
        for count, file in ((train, "train_5500.label"), (dev, "TREC_10.label")):
            rows = "".join(f"{labels[i % 6]} What is the café number {i} ?\n" for i in range(count))
            (folder / file).write_bytes(rows.encode("latin-1"))
        return folder
    else:
        texts = {
            f"{'val' if is_dev else 'train'}.jsonl": jsonl(superglue(name, count, is_dev)) for count, is_dev in parts
        }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder
