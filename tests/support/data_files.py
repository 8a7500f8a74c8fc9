"""Writes small data sets in their original formats, and tiny models."""

import io
import json
import pickle
import struct

import numpy as np
import torch


def write_natural_instructions(folder, train=None, test=None):
    """Write a folder in the form of Natural Instructions v2.8.

    Args:
        folder: to write into.
        train: instances of each train task by name, each (input, outputs).
        test: the same for test tasks.
    """
    tasks = {
        "train": train or {f"task{n:03d}_copy": numbered(25 + n, f"train {n}") for n in range(3)},
        "test": test or {"task900_test": numbered(30, "test")},
    }
    (folder / "splits" / "default").mkdir(parents=True)
    (folder / "tasks").mkdir()
    for split, of_split in tasks.items():
        names = "".join(f"{name}\n" for name in of_split)
        (folder / "splits" / "default" / f"{split}_tasks.txt").write_text(names)
        for name, rows in of_split.items():
            content = {
                "Contributors": ["nobody"],
                "Source": ["made by a test"],
                "Categories": ["Text Completion"],
                "Definition": [f"Do what {name} says.", "Another wording."],
                "Positive Examples": [{"input": "a", "output": "b", "explanation": "c"}],
                "Negative Examples": [],
                "Instances": [{"id": f"{name}-{i}", "input": x, "output": y} for i, (x, y) in enumerate(rows)],
                "Instance License": ["Unknown"],
            }
            (folder / "tasks" / f"{name}.json").write_text(json.dumps(content, indent=4))
    return folder


def numbered(count, text):
    return [(f"{text}, number {i}", [f"answer {i}", "second"]) for i in range(count)]


CATEGORIES = ("brainstorming", "classification", "closed_qa", "creative_writing", "general_qa",
              "information_extraction", "open_qa", "summarization")  # fmt: skip


def write_lines(path, rows):
    """Write a jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_dolly(path, each=12):
    """Write a file in the form of databricks-dolly-15k.jsonl, so many rows of each category in turn."""
    rows = [
        {"instruction": f"{c} {i}?", "context": f"About {i}." if i % 2 else "", "response": f"So {i}.", "category": c}
        for i in range(each)
        for c in reversed(CATEGORIES)
    ]
    return write_lines(path, rows)


def write_alpaca(path, count=40, input=""):
    """Write a file in the form of alpaca_data.json: a list with an object per example."""
    rows = [{"instruction": f"Say {i}.", "input": input, "output": f"{i}"} for i in range(count)]
    path.write_text(json.dumps(rows, indent=4), encoding="utf-8")
    return path


LANGUAGES = ("C", "C#", "C++", "Go", "Java", "PHP", "Pascal", "Python", "Scala", "X86-64 Assembly")


def write_code_alpaca(path, each=6):
    """Write a file in the form of rosetta_alpaca.json: the language is the input."""
    rows = [
        {"instruction": f"Print {i}.", "input": language, "output": f"print\u00a0{i}"}
        for i in range(each)
        for language in LANGUAGES
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_gsm8k(folder, train=30, test=6):
    """Write a folder in the form of GSM8K: train.jsonl and test.jsonl."""
    for name, count in (("train", train), ("test", test)):
        rows = [
            {
                "question": f"{name}: {i} and {i}?",
                "answer": f"It is {i}+{i} = <<{i}+{i}={2 * i}>>{2 * i}.\n#### {2 * i}",
            }
            for i in range(count)
        ]
        write_lines(folder / f"{name}.jsonl", rows)
    return folder


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
        text = f"{'dev' if dev else 'train'} text {i} says so."
        yes = i % 2 == 0
        yield {
            "rte": {"premise": text, "hypothesis": f"It is {i}.", "label": ("entailment", "not_entailment")[i % 2]},
            "cb": {
                "premise": text,
                "hypothesis": f"it is {i}",
                "label": ("entailment", "contradiction", "neutral")[i % 3],
            },
            "boolq": {"question": f"is it number {i}", "passage": text, "label": yes},
            "wsc": {
                "text": f"{text} Mark told Pete lies.",
                "target": {"span2_index": 9, "span1_index": 5, "span1_text": "Mark", "span2_text": "He"},
                "label": yes,
            },
            "wic": {
                "word": "place",
                "sentence1": f"A place {i}.",
                "sentence2": text,
                "start1": 2,
                "start2": 0,
                "end1": 7,
                "end2": 3,
                "version": 1.1,
                "label": yes,
            },
            "multirc": {
                "version": 1.1,
                "passage": {
                    "text": text,
                    "questions": [
                        {
                            "question": f"What is number {i}?",
                            "answers": [{"text": "so", "idx": 0, "label": 1}, {"text": "no", "idx": 1, "label": 0}],
                            "idx": 0,
                        }
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
                "passage": {
                    "text": f"Ann met Bob in Rome {i}.\n@highlight\nBob is {text}\n@highlight\nAnn left",
                    "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}, {"start": 15, "end": 18}],
                },
                "qas": [
                    {
                        "query": f"@placeholder was seen {i} times",
                        "answers": [{"start": 8, "end": 10, "text": "Bob"}, {"start": 15, "end": 18, "text": "Rome"}]
                        if yes
                        else [{"start": 0, "end": 2, "text": "Ann"}],
                        "idx": i,
                    }
                ],
            },
        }[name] | {"idx": i}


def squad(count, dev):
    name = "dev" if dev else "train"

    def question(i):
        answers = [{"text": f"the {name} {i}", "answer_start": 0}, {"text": f"{name} {i}", "answer_start": 4}]
        return {"id": f"{name}{i}", "question": f" What is number {i}?", "answers": answers[: 1 + dev]}

    articles = [
        {
            "title": f"Article_{a}",
            "paragraphs": [
                {"context": f"the {name} {i} is here", "qas": [question(i), question(i + 1)]}
                for i in range(a, count, 6)
            ],
        }
        for a in (0, 2, 4)
    ]
    return json.dumps({"data": articles, "version": "1.1"})


def drop(count, dev):
    date = {"day": "", "month": "", "year": ""}
    kinds = (
        {"number": "3", "date": date, "spans": []},
        {"number": "", "date": {"day": "4", "month": "May", "year": "1901"}, "spans": []},
        {"number": "", "date": date, "spans": ["Ann", "Bob"]},
    )
    passages = {}
    for p in range(count // 3):
        pairs = []
        for i, answer in enumerate(kinds):
            validated = [{"number": "", "date": date, "spans": [f"about {i}"]}, answer] if dev else []
            ids = {"query_id": f"{p}-{i}"}
            pairs.append(
                {"question": f"How many in {p}, {i}? ", "answer": answer, **ids, "validated_answers": validated}
            )
        wiki = {"wiki_url": "https://example.org", "qa_pairs": pairs}
        passages[f"nfl_{p}"] = {"passage": f"{'dev' if dev else 'train'} passage {p}", **wiki}
    return json.dumps(passages)


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


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2's cPickle wrote with protocol 2, as CIFAR's files were: texts are byte strings."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, value):
        data = value if isinstance(value, bytes) else value.encode("latin1")
        short = len(data) < 256
        self.write(
            pickle.SHORT_BINSTRING + bytes([len(data)]) + data
            if short
            else pickle.BINSTRING + struct.pack("<i", len(data)) + data
        )
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string

    def save_global(self, value, name=None):
        module = {"numpy._core.multiarray": "numpy.core.multiarray"}.get(value.__module__, value.__module__)
        self.write(pickle.GLOBAL + f"{module}\n{name or value.__qualname__}\n".encode())
        self.memoize(value)

    dispatch[type] = save_global


def python2_pickle(value):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def cifar_pixels(labels, seed, classes):
    """Rows of 3,072 bytes: noise, brighter the higher the label."""
    noise = np.random.default_rng(seed).integers(0, 100, (len(labels), 3072))
    return (noise + 150 * np.array(labels)[:, None] // classes).astype(np.uint8)


def write_cifar10(folder, each=24, test=20):
    """Write CIFAR-10's python folder: five batches of `each` pictures, a test batch, and the names."""
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        count = test if name == "test_batch" else each
        labels = [(3 * i + number) % 10 for i in range(count)]
        batch = {
            "data": cifar_pixels(labels, number, 10),
            "labels": labels,
            "batch_label": f"batch {number} of 6",
            "filenames": [f"picture_{number}_{i}.png" for i in range(count)],
        }
        (folder / name).write_bytes(python2_pickle(batch))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    meta = {"num_cases_per_batch": each, "label_names": names, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(python2_pickle(meta))
    return folder


def write_cifar100(folder, train=200, test=20):
    """Write CIFAR-100's python folder."""
    folder.mkdir(parents=True)
    for number, (name, count) in enumerate((("train", train), ("test", test))):
        labels = [7 * i % 100 for i in range(count)]
        batch = {
            "data": cifar_pixels(labels, number, 100),
            "fine_labels": labels,
            "coarse_labels": [label // 5 for label in labels],
            "batch_label": f"{name} batch 1 of 1",
            "filenames": [f"{name}_{i}.png" for i in range(count)],
        }
        (folder / name).write_bytes(python2_pickle(batch))
    meta = {
        "fine_label_names": [f"fine {i:02d}" for i in range(100)],
        "coarse_label_names": [f"coarse {i:02d}" for i in range(20)],
    }
    (folder / "meta").write_bytes(python2_pickle(meta))
    return folder


LABEL_WORDS = "terrible bad okay good great Yes Maybe No Description Entity Expression Human Location Number It was a"


def tiny_classifier(kind, classes=3, seed=0):
    """A random image classifier of transformers: "vit" or "resnet"; the second has its statistics off their start."""
    from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    names = {i: f"thing {i}" for i in range(classes)}
    labels = {"id2label": names, "label2id": {name: i for i, name in names.items()}}
    if kind == "vit":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        return ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **sizes, **labels)).eval()
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(**sizes, **labels)).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
    return model
