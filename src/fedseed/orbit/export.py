"""Writes a tuned model as a folder that `transformers` (or `peft`) loads, with a tokenizer and a
model card.

`fedseed export` uses it, and a client whose run is over.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedseed.durable import explain_failed_write, find_system_error
from fedseed.errors import FedseedError, StorageError
from fedseed.models import adapters
from fedseed.models.quantization import save_whole, write_quantization
from fedseed.orbit.card import Facts, Form, card
from fedseed.orbit.header import Header
from fedseed.text import first_line, listed
from fedseed.weights.digest import untied

HOLDS = ("config.json", "adapter_config.json")  # files that show that a folder holds a model
RUN_HOLDS = ("metrics.jsonl", "summary.json")  # files that show that a folder holds a run
CARD = "README.md"
SHOWN = 3  # number of tensors listed in an error
# texts for comparing two tokenizers
PROBES = (
    "a",
    "Say north 3.",
    "  Two blanks,\n\na tab\tand 12,345: caf\u00e9 \u4f60\u597d \U0001f426",
    "Yes </s>",
)


def check_free(folder: Path) -> None:
    """Check that a model can be written into a folder, before the model is made.

    Raises:
        FedseedError: it is a file, or holds a model, a run, or a README.md that the card would
            replace.
    """
    if folder.exists() and not folder.is_dir():
        raise FedseedError(f"{folder} is a file: choose another folder with --out")
    if any((folder / name).exists() for name in HOLDS):
        raise FedseedError(f"{folder} holds a model already: choose another folder with --out")
    if any((folder / name).exists() for name in RUN_HOLDS):
        raise FedseedError(
            f"{folder} holds a run, and a model's files would be mixed with it: choose another "
            "folder "
            "with --out"
        )
    if (folder / CARD).exists():
        raise FedseedError(
            f"{folder} holds a {CARD}, which the model's card would replace: move it away, or "
            "choose another folder with --out"
        )


def check_tokens(folder: Path, tokenizer: Any) -> None:
    """Raise FedseedError if a written tokenizer gives other tokens or chats than the one used in
    training.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    loaded = AutoTokenizer.from_pretrained(folder)
    for text in PROBES:
        ours, loaded_ids = (one(text)["input_ids"] for one in (tokenizer, loaded))
        if ours != loaded_ids:
            raise FedseedError(
                f"the exported tokenizer gives other tokens than the trained one ({text!r}: "
                f"{loaded_ids}, not {ours}): the model would answer differently; nothing is written"
            )
    if loaded.chat_template != tokenizer.chat_template:
        raise FedseedError(
            "the exported tokenizer has another chat template than the trained one; nothing is "
            "written"
        )


def check_weights(folder: Path, model: Any) -> None:
    """Raise FedseedError if a written model, loaded again, has other weights than the tuned one.

    Args:
        folder: what was written.
        model: the tuned model; with an adapter, the written adapter is compared.
    """
    import torch

    if adapters.is_installed(model):
        wrong = adapters.differences(model, folder)
    else:
        dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
        # float32 if there are several dtypes, as it can hold the values of the others
        dtype = next(iter(dtypes)) if len(dtypes) == 1 else torch.float32
        try:
            with torch.random.fork_rng(devices=[]), torch.device("cpu"), adapters.hushed():
                loaded = type(model).from_pretrained(folder, dtype=dtype)
        except (OSError, ValueError, RuntimeError) as error:
            raise FedseedError(
                f"the exported model can't be loaded again ({first_line(error)}); nothing is "
                "written"
            ) from error
        # convert the tensor classes of quantisation libraries to plain tensors
        tuned, exported = (dict(untied(one.state_dict().items())) for one in (model, loaded))
        wrong = [
            name
            for name in dict.fromkeys([*tuned, *exported])
            if name not in tuned or name not in exported or _differ(tuned[name], exported[name])
        ]
    if wrong:
        raise FedseedError(
            "the exported model, loaded again, has other weights than the tuned one in "
            f"{listed(wrong, SHOWN)}: a {type(model).__name__} does not save them, or "
            "initialises them again when it is loaded; nothing is written. Leave them out of "
            "model.trainable, or keep the orbit, which contains them"
        )


def check_finite(model: Any, header: Header) -> None:
    """Raise FedseedError if a tuned weight is NaN or infinite, as after a run that has diverged.

    Args:
        model: the tuned model.
        header: the header of the run's orbit, with the names of the tuned tensors.
    """
    tuned_names = {entry.name for entry in header.layout.tensors}
    wrong = [
        name
        for name, parameter in model.named_parameters()
        if name in tuned_names and not parameter.isfinite().all()
    ]
    if wrong:
        raise FedseedError(
            f"the tuned weights are NaN or infinite in {listed(wrong, SHOWN)}: the run has "
            "diverged; nothing is written. Export an earlier round with --upto, or run again with "
            "a lower rate"
        )


def _differ(tuned: Any, exported: Any) -> bool:
    """Return whether the values of two tensors differ."""
    first, second = tuned.detach().cpu(), exported.detach().cpu()
    if first.shape != second.shape:
        return True
    return not bool(((first == second) | (first.isnan() & second.isnan())).all())


def export_model(
    folder: Path, model: Any, processor: Any, header: Header, facts: Facts, merge: bool = False
) -> None:
    """Write a tuned model into a folder, as a whole or not at all.

    What was written is loaded again and compared before it takes its place.

    With an adapter the folder holds only the adapter (`peft` loads it onto the base), unless it is
    merged. For an adapter of a quantised base, a file with the base's quantisation is added. Tuned
    scales are written as a model of plain layers with the same results.

    Args:
        folder: made if missing; must not hold a model, a run or a README.md.
        model: the tuned `transformers` model; for an adapter the `peft` model around the base. It
            is changed if `merge` is set or scales were tuned.
        processor: its tokenizer or image processor; None: none is written.
        header: the header of the run's orbit.
        facts: the run's results, for the card.
        merge: whether to add an adapter's changes to the base's weights and write the whole model.

    Raises:
        FedseedError: the folder is not free (`check_free`), a tuned weight is NaN or infinite,
            `merge` is set without a LoRA adapter, the tokenizer or the model differs when it is
            loaded again, or a file can't be written. No partly written model is left behind.
    """
    check_free(folder)
    check_finite(model, header)
    form: Form = "adapter" if adapters.is_installed(model) else "whole"
    quantization = header.quantization if form == "adapter" else ""
    if merge:
        model, form = adapters.merged(model), "merged"
    kind = type(model.get_base_model() if form == "adapter" else model).__name__
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".export-", dir=folder) as temporary_folder:
            part = Path(temporary_folder)
            if form != "adapter":
                save_whole(model, part)
            else:
                adapters.save(model, part)
            check_weights(part, model)
            if processor is not None:
                processor.save_pretrained(part)
                check_tokens(part, processor)
            if quantization:
                write_quantization(part, quantization)
            # the model card that peft writes is an empty template
            (part / CARD).write_text(card(header, facts, form, kind), encoding="utf-8")
            # safetensors makes the weights' files readable by their owner only: give them the
            # card's mode, which follows the umask
            mode = (part / CARD).stat().st_mode
            # the files by which a folder counts as a model are moved last
            for path in sorted(part.iterdir(), key=lambda path: path.name in HOLDS):
                target = folder / path.name
                if target.is_dir():
                    shutil.rmtree(target)
                if path.is_file():
                    path.chmod(mode & 0o777)
                path.replace(target)
    except Exception as error:
        cause = find_system_error(error)
        if cause is None:
            raise
        raise StorageError(
            f"{folder}: the model can't be written: {explain_failed_write(cause)}"
        ) from error
