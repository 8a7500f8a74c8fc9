"""`fedseed export`, `evaluate` and `generate`: what comes of a run, in one's hands."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedseed.cli.common import JsonOption, PluginOption, SetOption, TrustOption, stepping
from fedseed.errors import RecipeError
from fedseed.registry import load_plugin
from fedseed.reports.screen import Screen
from fedseed.text import clean

if TYPE_CHECKING:
    from fedseed.objectives.generation import Writer, Writing
    from fedseed.runs.tuned import Tuned

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|ORBIT|MODEL",
        help="A run's folder, an orbit, a run's model.safetensors, or a model's folder or name.",
    ),
]
BaseOption = Annotated[
    str | None,
    typer.Option(
        "--base", help="The base: a name, its folder, or a folder with several. Default: where the run had it."
    ),
]
UptoOption = Annotated[int | None, typer.Option("--upto", min=0, help="The model after this round, not the last one.")]
BestOption = Annotated[
    str | None, typer.Option("--best", help="The model after the round that was best by this metric, such as loss.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", help="Where the model lies: auto (a GPU if there is one), cpu, cuda, cuda:1, map.")
]


def export(
    source: SourceArgument,
    out: Annotated[Path, typer.Option(help="Folder to write the model to; must not hold one.")],
    best: BestOption = None,
    upto: UptoOption = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Of a LoRA run: the whole model, with the adapter added to its weights.")
    ] = False,
    base: BaseOption = None,
    device: DeviceOption = "auto",
    plugin: PluginOption = None,
) -> None:
    """Write the tuned model as a folder that transformers loads (an adapter: peft), with tokenizer and model card."""
    from fedseed.orbit.export import check_free, export_model

    check_free(out)
    tuned = _open(source, base, upto, best, device, plugin)
    if tuned.header is None or tuned.facts is None:
        raise RecipeError(f"{source} is a model already: there is nothing to export")
    export_model(out, tuned.model, tuned.processor, tuned.header, tuned.facts, merge)
    adapter = tuned.header.adapter is not None and not merge
    _say(f"round {tuned.facts.steps} of {tuned.facts.of}; digest {tuned.facts.digest}")
    _say(f"{'Adapter' if adapter else 'Model'}: {out}")


def evaluate(
    source: SourceArgument,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Measure on this recipe's task. Default: that of the run.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="A task in place of the recipe's; --set task.KEY=VALUE for its settings."),
    ] = None,
    harness: Annotated[
        str | None, typer.Option("--lm-eval", help="Tasks of lm-evaluation-harness in place of ours: NAME,NAME.")
    ] = None,
    harness_path: Annotated[
        Path | None, typer.Option("--lm-eval-path", help="Folder with tasks of your own, in the harness' form.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="With --lm-eval: examples of each task.")] = None,
    best: BestOption = None,
    upto: UptoOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    base: BaseOption = None,
    device: DeviceOption = "auto",
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Measure a model on held-out examples: its run's, another recipe's or task's, or lm-evaluation-harness'."""
    from fedseed.runs.tuned import evaluate, evaluate_by_harness, find_source, recipe_for

    if harness is not None and (recipe or task or set_):
        raise RecipeError("--lm-eval goes without --recipe, --task and --set: the harness has tasks of its own")
    if harness is None and (limit is not None or harness_path is not None):
        raise RecipeError("--limit and --lm-eval-path go with --lm-eval")
    checked = None
    if harness is None:  # before anything is loaded
        checked = recipe_for(find_source(source), recipe, task, set_ or [], plugin or [], trust_plugins)
    tuned = _open(source, base, upto, best, device, plugin, quietly=as_json)
    about = {
        "source": source,
        "round": None if tuned.facts is None else tuned.facts.steps,
        "weights_digest": None if tuned.facts is None else tuned.facts.digest,
    }
    if checked is None:
        names = [name.strip() for name in (harness or "").split(",") if name.strip()]
        results = evaluate_by_harness(tuned, names, harness_path, limit)
        notes: list[str] = []
    else:
        metrics, notes = evaluate(tuned, checked)
        results = {str(checked.task.name): metrics}
    if as_json:
        print(json.dumps({**about, "notes": notes, "metrics": results}, indent=2))
        return
    for text in notes:
        _say(text)
    table = Table(box=None, pad_edge=False)
    for title, side in (("task", "left"), ("metric", "left"), ("value", "right")):
        table.add_column(title, justify="right" if side == "right" else "left")
    for name, numbers in results.items():
        for metric, value in numbers.items():
            table.add_row(name, metric, f"{value:.4f}")
    Screen().print(table)


def generate(
    source: SourceArgument,
    prompt: Annotated[str | None, typer.Argument(help="What the model goes on from. Default: standard input.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help='A text file: one prompt. A .jsonl file: a "prompt" (or "messages") in each line.'),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Use the tokenizer's chat template; on a terminal, talk on turn by turn.")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", help="With --chat: the system's turn.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="The most new tokens.")] = 128,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0: the likeliest token each time; above: drawn.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option("--top-p", min=0.0, max=1.0, help="Draw from the likeliest tokens of this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**64 - 1, help="Of what is drawn.")] = 0,
    best: BestOption = None,
    upto: UptoOption = None,
    base: BaseOption = None,
    device: DeviceOption = "auto",
    plugin: PluginOption = None,
) -> None:
    """Let a model write: after a prompt, for each line of a file, or in a conversation (--chat)."""
    from fedseed.objectives.generation import Writer, Writing

    if prompt is not None and file is not None:
        raise RecipeError("generate: a PROMPT or --file, not both")
    if system is not None and not chat:
        raise RecipeError("--system goes with --chat")
    talking = prompt is None and file is None and sys.stdin.isatty()
    wanted = [] if talking else list(_prompts(prompt, file, chat))
    tuned = _open(source, base, upto, best, device, plugin, quietly=True)
    writer, writing = Writer(tuned.model, tuned.processor), Writing(max_tokens, temperature, top_p, seed)
    opening = [] if system is None else [{"role": "system", "content": system}]
    if talking:
        _talk(writer, writing, chat, opening)
        return
    for one in wanted:
        if isinstance(one, str):
            turns = [*opening, {"role": "user", "content": one}]
            text = writer.answer(turns, writing) if chat else writer.after(one, writing)
        else:
            text = writer.answer([*opening, *one], writing)
        lines = file is not None and file.suffix == ".jsonl"
        print(json.dumps({"prompt": one, "response": text}, ensure_ascii=False) if lines else _seen(text))


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (export, evaluate, generate):
        app.command()(command)


def _say(text: str) -> None:
    Screen().print(text, highlight=False, soft_wrap=True)


def _open(
    name: str,
    base: str | None,
    upto: int | None,
    best: str | None,
    device: str,
    plugins: list[str] | None,
    quietly: bool = False,
) -> "Tuned":
    """Load a model, with a bar on standard error where there are steps to replay."""
    from fedseed.models.loading import quiet
    from fedseed.runs.tuned import best_round, find_source, open_tuned

    for plugin in plugins or []:
        load_plugin(plugin)
    if best is not None and upto is not None:
        raise RecipeError("--best or --upto, not both")
    source = find_source(name)
    if best is not None:
        upto = best_round(source, best)
        if not quietly:
            _say(f"round {upto} has the best {best}")
    quiet()
    with stepping(Screen(stderr=True)) as tell:
        return open_tuned(source, base, upto, device, tell)


def _prompts(prompt: str | None, file: Path | None, chat: bool) -> Iterator[str | list[dict[str, str]]]:
    if prompt is not None:
        yield prompt
    elif file is None:
        yield _said(sys.stdin.read())
    elif file.suffix != ".jsonl":
        try:
            yield _said(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"--file {file}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    else:
        from fedseed.tasks.files import read_records

        for row in read_records(file):
            if "messages" in row.values:
                if not chat:
                    raise RecipeError(f'{row.where}: "messages" need --chat')
                yield _turns(row.field("messages", list), row.where)
            else:
                yield row.field("prompt", str)


def _turns(found: list[Any], where: str) -> list[dict[str, str]]:
    for turn in found:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise RecipeError(f'{where}: "messages": each is an object with "role" and "content"')
    return found


def _said(text: str) -> str:
    """A prompt as typed or piped, without the line's end that a shell adds."""
    text = text.removesuffix("\n")
    if not text:
        raise RecipeError("generate: no prompt: give one, or --file, or pipe it in")
    return text


def _seen(text: str) -> str:
    """What a model has said; a terminal does not obey it."""
    return clean(text) if sys.stdout.isatty() else text


def _talk(writer: "Writer", writing: "Writing", chat: bool, opening: list[dict[str, str]]) -> None:
    """Turn by turn on a terminal, until its end (Ctrl-D) or an empty line."""
    print("Ctrl-D or an empty line ends.", file=sys.stderr)
    turns = list(opening)
    while True:
        try:
            said = input("> ")
        except EOFError:
            print()
            return
        if not said:
            return
        if not chat:
            print(_seen(writer.after(said, writing)))
            continue
        turns.append({"role": "user", "content": said})
        answer = writer.answer(turns, writing)
        turns.append({"role": "assistant", "content": answer})
        print(_seen(answer))
