"""Makes a small generative base of real English, and its federated task, from what Debian says of
its packages.

    python make_text_base.py            # into the folder data beside this file; goes on where it
    was stopped

The text is Debian's package descriptions (the indexes `Packages` and `Translation-en`, which apt
fetches). A quarter of the source packages is kept for the task: of a long description its one-line
synopsis, with maintainers as clients. The base never reads them, nor a synopsis of theirs anywhere
else. It reads the others' synopses before the long description or after it, under another prompt
than the task's.
"""

import argparse
import hashlib
import json
import math
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from prepare import Row, in_order, part_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
VOCABULARY, LENGTH = 4096, 256
SHORTEST, LONGEST = 80, 500  # characters of a long description; a longer one is cut after a word
CLIENTS, EACH, TESTS = 20, 80, 120
PROMPT = "{}\n\nIn one line:"  # the task's
ORDERS = ("{0}\n\nSynopsis: {1}", "{1}\n\n{0}")  # the base's: long description and synopsis
WARM_UP, SAVED = 50, 50  # steps


def package_indexes(folder: Path) -> tuple[str, str]:
    """Returns what apt knows of all packages and Translation-en, fetched once.

    Raises SystemExit: it can't be.
    """
    lists = folder / "lists"
    options = [f"-oDir::State::lists={lists}", f"-oDir::Cache={folder}", "-oAcquire::Languages=en"]
    for needed in (lists, folder / "archives"):
        (needed / "partial").mkdir(parents=True, exist_ok=True)
    try:
        if not any(lists.glob("*Translation-en*")):
            subprocess.run(["apt-get", *options, "-oAPT::Sandbox::User=root", "update"], check=True)
        known = subprocess.run(
            ["apt-cache", *options, "dumpavail"], stdout=subprocess.PIPE, text=True, check=True
        )
        read = [
            "/usr/lib/apt/apt-helper",
            "cat-file",
            *sorted(map(str, lists.glob("*Translation-en*"))),
        ]
        return known.stdout, subprocess.run(
            read, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"apt's indexes can't be fetched: {error}; this needs Debian's apt and a network")


def description_rows(packages: str, translations: str) -> Iterator[Row]:
    """Yields long descriptions (text) with synopses (label), maintainers and source packages, one
    of a source.

    It reads what `apt-cache dumpavail` prints, and a Translation-en file.
    """
    said = {}
    for paragraph in translations.split("\n\n"):
        found = re.search(
            r"^Description-md5: (\w+)\nDescription-en: (.*)\n((?: .*\n?)+)", paragraph, re.M
        )
        if found:
            blocks = " ".join(
                "\n\n" if line == " ." else line.strip() for line in found[3].splitlines()
            )
            said[found[1]] = found[2].strip(), re.sub(r" *\n\n *", "\n", blocks)
    sources, texts = set(), set()
    for paragraph in packages.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.M))
        synopsis, text = said.get(fields.get("Description-md5", ""), ("", ""))
        if len(text) > LONGEST:
            text = text[:LONGEST].rpartition(" ")[0]
        source = fields.get("Source", fields.get("Package", "")).partition(" ")[0]
        if len(text) >= SHORTEST and source not in sources and text[:SHORTEST] not in texts:
            sources.add(source)
            texts.add(text[:SHORTEST])
            maintainer = re.sub(r"\W+", "-", fields["Maintainer"].partition("<")[0].lower()).strip(
                "-"
            )
            yield Row(text, synopsis, maintainer, source)


def is_kept(source: str) -> bool:
    """Returns whether a source package belongs to the task: a quarter do."""
    return hashlib.sha256(f"task {source}".encode()).digest()[0] < 64


def documents(rows: Sequence[Row]) -> list[str]:
    """Returns what the base reads, in an order that the texts decide."""
    return [
        ORDERS[number % 2].format(row.text, row.label) for number, row in enumerate(in_order(rows))
    ]


def write_clients(rows: Sequence[Row], read: str, folder: Path) -> Mapping[str, int]:
    """Writes train.jsonl and test.jsonl of the largest maintainers of kept packages.

    Returns how many each has.

    A package whose synopsis stands anywhere in what the base has `read` is left out.
    """
    size = Counter(row.holder for row in rows)
    holders = sorted(size, key=lambda name: (-size[name], name))[:CLIENTS]
    read = read.lower()
    held: dict[tuple[str, str], list[Row]] = defaultdict(list)
    most = {"train": EACH, "test": TESTS // CLIENTS}
    for row in in_order([row for row in rows if row.holder in holders]):
        mine = held[part_of(row.origin), row.holder]
        if len(mine) < most[part_of(row.origin)] and row.label.lower() not in read:
            mine.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    counted = {}
    for part in most:
        chosen = in_order([row for holder in holders for row in held[part, holder]])
        lines = [
            {
                "prompt": PROMPT.format(row.text),
                "completion": f" {row.label}",
                "holder": row.holder,
                "source": row.origin,
            }
            for row in chosen
        ]
        (folder / f"{part}.jsonl").write_text(
            "\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8"
        )
        counted[part] = len(chosen)
    return counted


def make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE of the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = {"special_tokens": [PAD, BOS, EOS], "initial_alphabet": alphabet}  # 0, 1, 2
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, **how)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=LENGTH,
    )


def train(
    model: LlamaForCausalLM, rows: torch.Tensor, state: Path, said: argparse.Namespace
) -> list[str]:
    """Trains by AdamW on packed rows (shape (rows, LENGTH)), going on from the file `state`.

    Returns lines on loss.
    """
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=said.rate, betas=(0.9, 0.98), weight_decay=0.05
    )
    last, first = rows[: said.batch * 4], rows[said.batch * 4 :]  # held out
    done: dict[str, Any] = {"step": 0, "lines": [], "recent": []}
    if state.exists():
        done = torch.load(state, weights_only=True)
        model.load_state_dict(done.pop("model"))
        optimiser.load_state_dict(done.pop("optimiser"))

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    order = torch.cat(
        [
            torch.randperm(len(first), generator=torch.Generator().manual_seed(said.seed + epoch))
            for epoch in range(said.steps * said.batch // len(first) + 1)
        ]
    )
    began = time.monotonic()
    for step in range(done["step"], said.steps):
        rate = min((step + 1) / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * step / said.steps) + 0.02)
        optimiser.param_groups[0]["lr"] = said.rate * rate
        loss = loss_of(first[order[step * said.batch : (step + 1) * said.batch]])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        done["recent"].append(loss.item())
        if (step + 1) % SAVED == 0 or step + 1 == said.steps:
            with torch.no_grad():
                unseen = sum(loss_of(part).item() for part in last.split(said.batch)) / 4
            mean, seconds = sum(done["recent"]) / len(done["recent"]), time.monotonic() - began
            done["lines"].append(f"| {step + 1:,} | {mean:.3f} | {unseen:.3f} |")
            print(
                f"step {step + 1}: loss {mean:.3f}, unseen {unseen:.3f}; {seconds:.0f} s",
                flush=True,
            )
            done |= {"step": step + 1, "recent": []}
            torch.save(
                {**done, "model": model.state_dict(), "optimiser": optimiser.state_dict()}, state
            )
    return list(done["lines"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the task and the base, and says what there is."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    for name, number in (("steps", 3000), ("batch", 4), ("seed", 1)):
        asked.add_argument(f"--{name}", type=int, default=number)
    asked.add_argument("--rate", type=float, default=2e-3)
    said = asked.parse_args(arguments)
    print("reading apt's indexes", flush=True)
    rows = list(description_rows(*package_indexes(said.out / "apt")))
    texts = documents([row for row in rows if not is_kept(row.origin)])
    counted = write_clients(
        [row for row in rows if is_kept(row.origin)], "\n".join(texts), said.out / "synopsis"
    )
    tokenizer = make_tokenizer(texts)
    encoded = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    stream = torch.tensor([number for one in encoded for number in (1, *one.ids, 2)])
    print(
        f"{len(texts):,} descriptions of {len(stream):,} tokens; the task has {counted}", flush=True
    )
    torch.manual_seed(said.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=5,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            initializer_range=0.04,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    lines = train(
        model,
        stream[: len(stream) // LENGTH * LENGTH].view(-1, LENGTH),
        said.out / "text-base.pt",
        said,
    )
    folder = said.out / "text-base"
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    print(
        "\n".join(lines),
        f"\n{sum(p.numel() for p in model.parameters()):,} parameters, sha256 {digest}",
    )


if __name__ == "__main__":
    main()
