"""Tells classes apart by a model's head: of texts (BERT, RoBERTa, LLaMA), or of pictures (ViT,
ResNet).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Scoring, TextObjective
from fedseed.objectives.tokens import placed
from fedseed.tasks.data import MASK, Choice, Cloze, Picture

# bytes of pixel values that are kept; beyond, a picture is processed each time it is used
KEPT = 1 << 30


@dataclass(frozen=True)
class ClassifiedText:
    """A tokenised text, with the tokenizer's special tokens, and the number of its class."""

    ids: tuple[int, ...]
    gold: int


class TextClasses(Scoring, TextObjective):
    """Which class a text is of: cross-entropy of the logits of a classification head.

    The text is a `Choice`'s own, or its prompt if it has none; of a `Cloze` the text with the
    tokenizer's mask token in its blank, or nothing there where the tokenizer has none.
    `TextObjective` has the arguments.

    Raises:
        ValueError: the tokenizer has nothing to fill up shorter texts with.
    """

    batch = 64
    are_classes = True

    @property
    def needed(self) -> tuple[str, str]:  # type: ignore[override]
        """Returns a token that can pad, which is all that is needed: nothing is put at the end of a
        text.
        """
        return (
            ("pad_token", "token to pad with")
            if self.tokenizer.eos_token_id is None
            else TextObjective.needed
        )

    def probe_ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def items(self, example: Choice | Cloze) -> list[ClassifiedText]:
        if isinstance(example, Choice):
            text = example.text or example.prompt
        else:
            text = example.text.replace(MASK, self.tokenizer.mask_token or "")
        ids = tuple(self.text_tokens.whole(text))
        return [ClassifiedText(ids, example.gold)] if len(ids) <= self.max_length else []

    def scores(
        self, model: Any, items: Sequence[ClassifiedText], at_once: int | None = None
    ) -> torch.Tensor:
        """Returns the classes' logits."""
        logits = self.logits_of(model, [item.ids for item in items]).float()
        return logits if self.outputs is None else logits[:, list(self.outputs)]


class Images(Scoring):
    """Which class a picture shows.

    Resizing, cropping and normalising are the model's own image processor's, with its settings;
    nothing is random. Grey pictures are repeated for a processor with three channels.

    Args:
        processor: a `transformers` image processor.
    """

    batch = 64

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self._room = KEPT
        self._made: dict[Picture, torch.Tensor] = {}  # a picture is a key by its identity
        mean = getattr(processor, "image_mean", None)
        self._channels = len(mean) if isinstance(mean, list | tuple) else None

    def items(self, example: Picture) -> list[Picture]:
        """Raises RecipeError if the picture's channels are not those of the processor."""
        channels = example.pixels.shape[2]
        if self._channels is not None and channels not in (1, self._channels):
            raise RecipeError(
                f"model.base: a picture has {channels} channels, the model's image processor takes "
                f"{self._channels}"
            )
        return [example]  # pixel values are made when they are used

    def pixel_values(self, items: Sequence[Picture]) -> torch.Tensor:
        """Returns what the model is given: float32, shape (items, channels, height, width)."""
        new = [item for item in dict.fromkeys(items) if item not in self._made]
        pixels = [item.pixels for item in new]
        if self._channels is not None:
            pixels = [
                np.repeat(p, self._channels, axis=2) if p.shape[2] < self._channels else p
                for p in pixels
            ]
        made: dict[Picture, torch.Tensor] = {}
        if new:
            with torch.device("cpu"):
                batch = self.processor(
                    images=pixels, return_tensors="pt", input_data_format="channels_last"
                )
            made = dict(zip(new, batch["pixel_values"].float(), strict=True))
        values = torch.stack([made[item] if item in made else self._made[item] for item in items])
        for item, tensor in made.items():
            size = tensor.numel() * tensor.element_size()
            if self._room >= size:
                self._room -= size
                self._made[item] = tensor.clone()  # not a view of the whole batch
        return values

    def scores(
        self, model: Any, items: Sequence[Picture], at_once: int | None = None
    ) -> torch.Tensor:
        """Returns the classes' logits."""
        first = next(model.parameters())
        values = placed(self.pixel_values(items), first.device).to(first.dtype)
        logits: torch.Tensor = model(pixel_values=values).logits
        logits = logits.float()
        return logits if self.outputs is None else logits[:, list(self.outputs)]
