"""Does every model type of transformers work here? A tiny random base of each, through everything.

    python benchmarks/architectures.py [--kinds causal seq2seq classification masked]
        [--only llama gpt2] [--share 0.1] [--again fails] [--seconds 300]
        [--out docs/architectures.md] [--results runs/architectures.jsonl]

Each type: built small and trained in plain transformers; loaded; its losses alone and in a padded
batch against plain transformers (1e-4); one pass for a population against one at a time; FeedSign,
Ferret, FedKSeed and FedAvg; replay; export, with equal logits and greedy text in plain
transformers; nothing else changed. A process and a time limit for each. The whole takes hours on
one core; what is in the results already, of the same versions, is not run again, unless --again
names its verdict. Parts with results of their own can run side by side (--kinds): put their lines
into one file, and start again for the table. The table goes into the documentation: works, refused
because, fails. What the page has from earlier calls, and the results have not, stays there and is
named as that until it is tried again.
"""

import argparse
import json
import multiprocessing
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
import tiny_bases

import fedseed
from fedseed import Basis, Federation, ParameterSpace
from fedseed.errors import FedseedError, RecipeError
from fedseed.models.loading import load_model
from fedseed.objectives.generation import generate
from fedseed.objectives.masked import MaskedLM
from fedseed.orbit.export import export_model
from fedseed.processes import IMPORTED
from fedseed.runs.model_setup import examine_base
from fedseed.runs.tuned import find_source, open_tuned
from fedseed.tasks.data import Cloze
from fedseed.weights.row_losses import row_losses

TOLERANCE = 1e-4
LINES = 16  # of each of two clients
TRAINING = "[method.training]\nlearning_rate = 0.01\nsteps = 1\nbatch = 4"
METHODS = {
    "feedsign": 'name = "feedsign"\nlearning_rate = 1e-3\nbatch = 4',
    "ferret": f'name = "ferret"\nbytes = "3kB"\n{TRAINING}',
    "fedkseed": 'name = "fedkseed"\nlearning_rate = 1e-3\nbatch = 4\nsteps = 2',
    "fedavg": f'name = "fedavg"\n{TRAINING}',
}
SECTIONS = {
    "fails": "## Fails",
    "refused": "## Refused, and why",
    "works": "## Works",
    "not built": "## Not built",
}
LISTED = re.compile(r"\| (\S+) \((\w+)\) \| (.*) \|")  # a line of `listing`
EARLIER = "## Of an earlier call"
WITH_ORBITS = ("feedsign", "ferret", "fedkseed")
VERDICTS = ("works", "refused", "fails", "not built")
NOTHING = "None of those tried."
Row = dict[str, Any]


class Check:
    """The checks of one type, in their order; each raises AssertionError where it fails."""

    def __init__(self, kind: str, model_type: str, folder: Path) -> None:
        self.kind, self.model_type, self.folder = kind, model_type, folder
        self.auto = getattr(transformers, tiny_bases.KINDS[kind][0])
        self.base = folder / "base"
        self.objective: Any = None
        self.items: list[Any] = []
        self.model: Any = None
        self.plain: Any = None

    def settle_kind(self) -> None:
        """Take a model that is listed among the encoder-decoders for what it is."""
        config = transformers.AutoConfig.from_pretrained(self.base)
        if self.kind == "seq2seq" and not config.is_encoder_decoder:
            self.kind = "causal"  # it hears besides

    def plain_of(self, place: Path) -> Any:
        """Return a folder's model as plain transformers loads it."""
        options = {}
        if self.kind == "causal" and getattr(self.model.config, "is_decoder", False):
            options["is_decoder"] = True
        try:
            return self.auto.from_pretrained(place, dtype=torch.float32, **options).eval()
        except (TypeError, ValueError):
            return self.auto.from_pretrained(place, dtype=torch.float32).eval()

    def loads(self) -> None:
        """The base is what plain transformers has."""
        recipe = self.recipe("fedavg")
        if self.kind == "masked":
            self.model, tokenizer = load_model(str(self.base), architecture="masked")
            self.objective = MaskedLM(tokenizer)
            examine_base(self.model, self.objective)  # as a run does
            self.items = self.objective.prepare(self.clozes(tokenizer))
        else:
            federation = Federation.from_file(recipe, progress=False)
            self.model = federation.hosted.worker.space.model
            self.objective = federation.hosted.worker.objective
            self.items = list(federation.hosted.items["north"])[:6]
        self.plain = self.plain_of(self.base)
        ours, theirs = self.model.state_dict(), self.plain.state_dict()
        other = [n for n in theirs if n not in ours or not torch.equal(ours[n], theirs[n])]
        assert not other, f"other weights than plain transformers in {other[:2]}"

    def has_plain_losses(self) -> None:
        """Losses alone and in a padded batch are those of plain transformers, a text at a time."""
        expected = [self.plain_loss(item) for item in self.items]
        self.alike([self.losses([item])[0] for item in self.items], expected, "alone")
        self.alike(self.losses(self.items), expected, "in a padded batch")

    def sees_populations(self) -> None:
        """A population in one pass has the losses of weights that are really moved."""
        space, basis = ParameterSpace(self.model), Basis("lowrank", seed=5)
        items = self.items[:4]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = row_losses(
                space,
                partial(self.objective.losses, self.model.eval()),
                items,
                basis,
                range(4),
                5e-3,
            )
        each = []
        for number, item in enumerate(items):
            saved = space.snapshot()
            space.add(basis, torch.ones(1).numpy(), 5e-3, first=number)
            each.append(float(self.losses([item])[0]) * self.objective.weight(item))
            space.restore(saved)
        self.alike(found.tolist(), each, "for a population", 10 * TOLERANCE)

    def runs(self) -> None:
        """The methods run, and orbits replay to the run's digest."""
        if self.kind == "masked":  # cloze tasks need files of their own
            return
        for method in METHODS:
            out = self.folder / method
            federation = Federation.from_file(self.recipe(method), out=str(out), progress=False)
            federation.draw = lambda *_: None  # type: ignore[method-assign]
            summary = federation.run().summary
            finite = [v for k, v in summary["final"].items() if k.endswith("loss")]
            assert all(value == value for value in finite), f"{method}: the loss is not a number"
            if method in WITH_ORBITS:
                model = open_tuned(find_source(str(out)), check_all=True).model
                digest = ParameterSpace(model).digest()
                assert digest == summary["weights_digest"], f"{method}: another model replays"

    def exports(self) -> None:
        """The exported folder is the tuned model in plain transformers, and nothing else moved."""
        if self.kind == "masked":
            return
        tuned = open_tuned(find_source(str(self.folder / "ferret")))
        place = self.folder / "exported"
        assert tuned.header is not None and tuned.facts is not None
        export_model(place, tuned.model, tuned.processor, tuned.header, tuned.facts)
        written = self.plain_of(place)
        ours, theirs = tuned.model.state_dict(), written.state_dict()
        other = [n for n in ours if n not in theirs or not torch.equal(ours[n], theirs[n])]
        assert not other, f"the export has other weights in {other[:2]}"
        trained = {tensor.name for tensor in tuned.header.layout.tensors}
        before = dict(self.plain.named_parameters())
        moved = [n for n, p in written.named_parameters() if not torch.equal(p, before[n])]
        assert moved and trained.issuperset(moved), f"moved: {sorted({*moved} - trained)[:2]}"
        item = self.items[0]
        assert self.plain_loss(item, tuned.model) == self.plain_loss(item, written), "logits differ"
        if self.kind in ("causal", "seq2seq"):
            examine_base(tuned.model, self.objective)  # as a run does
            self.writes_alike(tuned.model, written)

    def writes_alike(self, tuned: Any, written: Any) -> None:
        """Answers in a batch are those of plain greedy generation, a prompt at a time."""
        prompts = [list(item.ids[: item.response_start]) for item in self.items[:3]]
        found = generate(tuned, self.objective, prompts, 5)
        for prompt, text in zip(prompts, found, strict=True):
            with torch.no_grad():
                ids = written.generate(
                    input_ids=torch.tensor([prompt]),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                    max_new_tokens=5,
                    do_sample=False,
                    num_beams=1,
                )[0]
            new = ids if self.kind == "seq2seq" else ids[len(prompt) :]
            plain = self.objective.tokenizer.decode(new, skip_special_tokens=True)
            assert text == plain, f"{text!r} is written, {plain!r} in plain transformers"

    def losses(self, items: Iterable[Any]) -> list[float]:
        """Return the losses of items, each divided by its terms."""
        items = list(items)
        with torch.no_grad():
            found = self.objective.losses(self.model.eval(), items).tolist()
        return [one / self.objective.weight(item) for one, item in zip(found, items, strict=True)]

    def plain_loss(self, item: Any, model: Any = None) -> float:
        """Return the loss of an item by a plain forward pass, divided by its terms."""
        model = self.plain if model is None else model
        ids = torch.tensor([list(item.ids)])
        with torch.no_grad():
            if self.kind == "seq2seq":
                source, target = ids[:, : item.response_start], ids[:, item.response_start :]
                asked = {"input_ids": source, "attention_mask": torch.ones_like(source)}
                if self.model_type == "fsmt":
                    # of labels it makes no decoder's input, but takes the encoder's; and with a
                    # cache it has no causal mask
                    start = torch.tensor([[model.config.decoder_start_token_id]])
                    asked["decoder_input_ids"] = torch.cat([start, target[:, :-1]], 1)
                    asked["use_cache"] = False
                else:
                    asked["labels"] = target
                found = model(**asked)
                return float(cross_entropy(found.logits[0].float(), target[0]))
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float()
        if self.kind == "causal":
            predicted = logits[0, -ids.shape[1] :][item.response_start - 1 : -1]
            return float(cross_entropy(predicted, ids[0, item.response_start :]))
        if self.kind == "masked":
            logits = logits[:, item.mask, list(item.words)]
        return float(cross_entropy(logits, torch.tensor([item.gold])))

    def alike(
        self, ours: list[float], theirs: list[float], what: str, most: float = TOLERANCE
    ) -> None:
        """Raise AssertionError if losses are further apart than rounding brings them."""
        apart = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True))
        assert apart <= most, f"losses {what} are {apart:.2g} from plain ones"

    def clozes(self, tokenizer: Any) -> list[Cloze]:
        """Return texts with a blank, of several lengths."""
        rng = random.Random(3)
        single = [
            f" {word}"
            for word in tiny_bases.WORDS
            if len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1
        ]
        words = tuple(single[:3])
        lengths = enumerate((2, 9, 4, 7, 1, 12))
        return [
            Cloze(" ".join(rng.choices(tiny_bases.WORDS, k=k)) + " is<mask> .", words, n % 3)
            for n, k in lengths
        ]

    def recipe(self, method: str) -> Path:
        """Write a recipe and its data, and return the recipe's file."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        rng = random.Random(1)
        for name in ("north", "south"):
            rows = []
            for number in range(LINES):
                words = " ".join(rng.choices(tiny_bases.WORDS, k=rng.randrange(2, 11)))
                answer = " ".join(rng.choices(tiny_bases.WORDS, k=rng.randrange(1, 6)))
                asked = {"prompt": words, "completion": f" {answer}"}
                labelled = {"text": words, "label": ("bad", "good")[number % 2]}
                rows.append(labelled if self.kind == "classification" else asked)
            (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        path = self.folder / f"{method}.toml"
        path.write_text(
            f'rounds = 2\n[task]\nname = "files"\npath = "{data}"\nevaluation = 0.2\n'
            f"[evaluation]\nrouge = false\n[method]\n{METHODS[method]}\n"
            f'[model]\nbase = "{self.base}"\narchitecture = "{self.kind}"\n'
        )
        return path


def trains_in_plain_transformers(check: Check) -> None:
    """Raise AssertionError if a type has no finite gradient in plain transformers."""
    # dropout is off, but Reformer asks for the mode in which it trains
    model = check.auto.from_pretrained(check.base, dtype=torch.float32)
    model.train(check.model_type == "reformer")
    # a Perceiver's logits are of all positions that it has, and Reformer trains with all of them
    whole = (check.kind, check.model_type) == ("masked", "perceiver")
    whole = whole or check.model_type == "reformer"
    length = model.config.max_position_embeddings if whole else 16
    ids = torch.tensor([[1, *(20 + number % 16 for number in range(length - 2)), 2]])
    labels = torch.tensor([1]) if check.kind == "classification" else ids
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert torch.isfinite(loss) and all(torch.isfinite(g).all() for g in gradients), (
        "no finite loss"
    )


def examine(kind: str, model_type: str) -> Row:
    """Return what becomes of a model type: its verdict, and why."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as made:
        check = Check(kind, model_type, Path(made))
        try:
            tiny_bases.build(kind, model_type, check.base)
            check.settle_kind()
            trains_in_plain_transformers(check)
        except Exception as error:
            return {"verdict": "not built", "why": said(error)}
        steps: list[Callable[[], None]] = [
            check.loads,
            check.has_plain_losses,
            check.sees_populations,
            check.runs,
            check.exports,
        ]
        for step in steps:
            try:
                step()
            except RecipeError as error:
                why = str(error).replace(str(check.base), "BASE")
                return {"verdict": "refused", "why": why}
            except FedseedError as error:
                refused = step == check.exports and "other weights" in str(error)
                verdict = "refused" if refused else "fails"
                return {"verdict": verdict, "why": f"{step.__name__}: {said(error)}"}
            except Exception as error:
                return {"verdict": "fails", "why": f"{step.__name__}: {said(error)}"}
        notes = getattr(getattr(check.model, "_fedseed_traits", None), "notes", [])
        return {"verdict": "works", "why": "; ".join(notes)}


def said(error: BaseException) -> str:
    """Return an error's first line, with its type where it is not ours."""
    lines = str(error).strip().splitlines() or [""]
    ours = isinstance(error, AssertionError | FedseedError)
    return (lines[0] if ours else f"{type(error).__name__}: {lines[0]}")[:240]


def report(kind: str, model_type: str, channel: Any) -> None:
    """Examine a type in a process of its own, and send what became of it."""
    channel.send(examine(kind, model_type))


def examine_apart(kind: str, model_type: str, seconds: float) -> Row:
    """Return what becomes of a model type, whatever happens to the process that tries it.

    The process comes from a server that has computed nothing: numba ends a process that is forked
    from one where its threads have run, as those of a test's process may have.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(kind, model_type, there))
    process.start()
    there.close()
    try:
        found: Row = (
            here.recv()
            if here.poll(seconds)
            else {"verdict": "not built", "why": f"no answer in {seconds:.0f} s"}
        )
    except EOFError:
        found = {"verdict": "fails", "why": "the process died"}
    if process.is_alive():
        process.kill()
    process.join()
    return found


def versions() -> str:
    """Return the versions that a result is of."""
    return (
        f"fedseed {fedseed.__version__}, transformers {transformers.__version__}, "
        f"torch {version('torch')}"
    )


def table(rows: list[Row], known: dict[str, int]) -> str:
    """Return the page of the documentation."""
    lines = [
        "# Architectures that were tried",
        "",
        "Made by `python benchmarks/architectures.py`: of each model type of transformers a tiny",
        "random base, loaded, compared with plain transformers, tuned by four methods, replayed,",
        "exported and compared again. The script says how.",
        "",
        f"Versions: {', '.join(sorted({row['versions'] for row in rows}))}.",
        "",
        "| | types known | tried | built | works | refused, with a reason | fails | not built |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, count in known.items():
        mine = [row for row in rows if row["kind"] == kind]
        each = [str(sum(row["verdict"] == one for row in mine)) for one in VERDICTS]
        built = sum(row["verdict"] != "not built" for row in mine)
        lines.append(f"| {kind} | {count} | {len(mine)} | {built} | {' | '.join(each)} |")
    missing = sum(known.values()) - len(rows)
    if missing > 0:
        lines += ["", f"The sweep is not whole yet: {missing} types were not reached."]
    lines += [
        "",
        "*Not built*: the script can't make a small one, or it does not train in plain",
        "transformers.",
        "",
    ]
    for verdict, title in SECTIONS.items():
        lines += [title, ""]
        chosen = [row for row in rows if row["verdict"] == verdict]
        if not chosen:
            lines += [NOTHING, ""]
        elif verdict == "works":
            lines += names_by_kind(chosen, known)
            said_of = [row for row in chosen if row["why"]]
            if said_of:
                lines += ["Of these, with a line before the run:", "", *listing(said_of), ""]
        else:
            lines += [*listing(chosen), ""]
    kept = [row for row in rows if row.get("earlier")]
    if kept:
        lines += [EARLIER, "", "Not tried again with the present code:", ""]
        lines += names_by_kind(kept, known)
    return "\n".join(lines).rstrip() + "\n"


def names_by_kind(rows: list[Row], kinds: Iterable[str]) -> list[str]:
    """Return a paragraph with the types of each kind."""
    lines = []
    for kind in kinds:
        names = [row["type"] for row in rows if row["kind"] == kind]
        lines += [f"**{kind}**: {', '.join(sorted(names)) or 'none'}.", ""]
    return lines


def read_page(page: str, of_versions: str) -> list[Row]:
    """Return the results that a page of the documentation has.

    Args:
        page: what `table` wrote.
        of_versions: what the page must be of; of another one nothing is returned.
    """
    if f"Versions: {of_versions}.\n" not in page:
        return []
    rows: dict[tuple[str, str], Row] = {}
    verdict = ""
    for line in page.splitlines():
        if line.startswith("## "):
            verdict = next((v for v, title in SECTIONS.items() if title == line), "")
        elif verdict and line.startswith("**"):
            kind, _, names = line.strip("*.").partition("**: ")
            for name in names.split(", "):
                if name != "none":
                    rows[kind, name] = {"verdict": verdict, "why": ""}
        elif verdict and LISTED.fullmatch(line):
            name, kind, why = LISTED.findall(line)[0]
            rows[kind, name] = {"verdict": verdict, "why": why.replace("\\|", "|")}
    return [
        {"kind": kind, "type": name, "versions": of_versions, "earlier": True, **row}
        for (kind, name), row in rows.items()
    ]


def listing(rows: list[Row]) -> list[str]:
    """Return a table of types and what is to say about each."""
    lines = ["| type | |", "|---|---|"]
    for row in sorted(rows, key=lambda row: (row["kind"], row["type"])):
        why = " ".join(row["why"].split()).replace("|", "\\|")
        lines.append(f"| {row['type']} ({row['kind']}) | {why} |")
    return lines


def sample(share: float, kinds: list[str], only: list[str], seed: int = 1) -> list[tuple[str, str]]:
    """Return the types to try, in an order drawn at random."""
    names = [(kind, one) for kind in kinds for one in tiny_bases.types_of(kind)]
    names = [pair for pair in names if not only or pair[1] in only]
    random.Random(seed).shuffle(names)
    return names[: max(1, round(share * len(names)))]


def write_table(path: Path, rows: dict[tuple[str, str], Row]) -> None:
    """Write the page of the documentation."""
    known = {kind: len(tiny_bases.types_of(kind)) for kind in tiny_bases.KINDS}
    path.write_text(table(list(rows.values()), known), encoding="utf-8")


def read_results(results: Path, page: Path) -> dict[tuple[str, str], Row]:
    """Return what is known of these versions: what the page has, then the results."""
    rows: list[Row] = []
    if page.is_file():
        rows += read_page(page.read_text(encoding="utf-8"), versions())
    if results.is_file():
        rows += map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return {(row["kind"], row["type"]): row for row in rows if row["versions"] == versions()}


def is_settled(row: Row | None, again: list[str]) -> bool:
    """Return whether a type needs no other try: it was tried, and not with a verdict in `again`."""
    return row is not None and not row.get("earlier") and row["verdict"] not in again


def main() -> None:
    """Try types, and write the table of all that were tried."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument(
        "--kinds", nargs="+", choices=tiny_bases.KINDS, default=list(tiny_bases.KINDS)
    )
    parser.add_argument("--only", nargs="+", default=[], help="model types")
    parser.add_argument("--share", type=float, default=1.0, help="of the types, drawn at random")
    parser.add_argument(
        "--again",
        nargs="+",
        choices=VERDICTS,
        default=[],
        help="try types with these results again",
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="for one type at most")
    parser.add_argument("--out", type=Path, default=Path("docs/architectures.md"))
    parser.add_argument("--results", type=Path, default=Path("runs/architectures.jsonl"))
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    rows = read_results(options.results, options.out)
    for kind, model_type in sample(options.share, options.kinds, options.only):
        if not options.only and is_settled(rows.get((kind, model_type)), options.again):
            continue
        found = examine_apart(kind, model_type, options.seconds)
        row = {"kind": kind, "type": model_type, "versions": versions(), **found}
        rows[kind, model_type] = row
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{kind:15} {model_type:28} {row['verdict']:10} {row['why'][:160]}", flush=True)
        write_table(options.out, rows)
    write_table(options.out, rows)


if __name__ == "__main__":
    main()
