"""Objectives for a model's head: classes of texts (BERT, RoBERTa, LLaMA) or of pictures (ViT,
ResNet), or a number for each text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Scoring, TextObjective
from fedseed.objectives.tokens import to_device
from fedseed.tasks.data import MASK, Choice, Cloze, Picture, Score

# bytes of pixel values that are kept; beyond, a picture is processed each time it is used
KEPT = 1 << 30


@dataclass(frozen=True)
class HeadText:
    """A tokenised text, or a pair of texts, with the tokenizer's special tokens."""

    ids: tuple[int, ...]
    # for each token of a pair, the text that holds it, where the tokenizer says so
    segments: tuple[int, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class ClassifiedText(HeadText):
    """A text and the number of its class."""

    gold: int


@dataclass(frozen=True)
class ScoredText(HeadText):
    """A text and the number that is to be predicted of it."""

    value: float


class OfTexts(TextObjective):
    """The common part of objectives that use a classification head on texts.

    `TextObjective` has the arguments.

    Raises:
        ValueError: the tokenizer has nothing to fill up shorter texts with.
    """

    batch: ClassVar[int] = 64  # texts that are evaluated at a time

    @property
    def needed(self) -> tuple[str, str]:  # type: ignore[override]
        """Return a token that can pad, which is all that is needed: nothing is put at the end of a
        text.
        """
        if self.tokenizer.eos_token_id is None:
            return ("pad_token", "token to pad with")
        return TextObjective.needed

    def probe_ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def tokens_of(self, text: str, pair: str = "") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of a text or of a pair, as plain transformers has them, and the
        segments of a pair's.
        """
        if not pair:
            return tuple(self.text_tokens.whole(text)), ()
        encoding = self.tokenizer(text, pair)
        return tuple(encoding["input_ids"]), tuple(encoding.get("token_type_ids") or ())

    def head_outputs(self, model: Any, items: Sequence[HeadText]) -> torch.Tensor:
        """Return the head's outputs for texts: float32, shape (items, outputs), differentiable."""
        segments = None
        if any(item.segments for item in items):
            segments = [item.segments or (0,) * len(item.ids) for item in items]
        return self.logits_of(model, [item.ids for item in items], segments).float()


class TextClasses(Scoring, OfTexts):
    """Text classification: cross-entropy of the logits of a classification head.

    The text is a `Choice`'s own (or both of its texts), or its prompt if it has none; of a `Cloze`
    the text with the tokenizer's mask token in its blank, or nothing there where the tokenizer has
    none. `OfTexts` has the arguments and errors.
    """

    batch = 64
    are_classes = True

    def items(self, example: Choice | Cloze) -> list[ClassifiedText]:
        if isinstance(example, Choice):
            ids, segments = self.tokens_of(example.text or example.prompt, example.pair)
        else:
            ids, segments = self.tokens_of(
                example.text.replace(MASK, self.tokenizer.mask_token or "")
            )
        item = ClassifiedText(ids, example.gold, segments=segments)
        if len(ids) <= self.max_length:
            return [item]
        return []

    def scores(
        self, model: Any, items: Sequence[ClassifiedText], at_once: int | None = None
    ) -> torch.Tensor:
        """Return the classes' logits."""
        logits = self.head_outputs(model, items)
        if self.outputs is None:
            return logits
        return logits[:, list(self.outputs)]


class TextScores(OfTexts):
    """A number for each text, or for each pair of texts: regression by a head of one output.

    The loss is the squared error, as transformers has it for `problem_type = "regression"`.
    `OfTexts` has the arguments and errors; longer texts are dropped.
    """

    def items(self, example: Score) -> list[ScoredText]:
        ids, segments = self.tokens_of(example.text, example.pair)
        item = ScoredText(ids, example.value, segments=segments)
        if len(ids) <= self.max_length:
            return [item]
        return []

    def predictions(self, model: Any, items: Sequence[ScoredText]) -> torch.Tensor:
        """Return the predicted numbers: float32, shape (items,), differentiable."""
        return self.head_outputs(model, items)[:, 0]

    def losses_of(self, predictions: torch.Tensor, items: Sequence[ScoredText]) -> torch.Tensor:
        """Return each item's squared error from its prediction, shape (items,)."""
        values = to_device([item.value for item in items], predictions.device)
        return (predictions - values) ** 2

    def losses(self, model: Any, items: Sequence[ScoredText]) -> torch.Tensor:
        return self.losses_of(self.predictions(model, items), items)


class Images(Scoring):
    """Picture classification.

    Resizing, cropping and normalising are the model's own image processor's, with its settings;
    nothing is random. Grey pictures are repeated for a processor with three channels.

    Args:
        processor: a `transformers` image processor.
    """

    batch = 64

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self._room = KEPT
        self._cache: dict[Picture, torch.Tensor] = {}  # a picture is a key by its identity
        mean = getattr(processor, "image_mean", None)
        self._channels = len(mean) if isinstance(mean, list | tuple) else None

    def items(self, example: Picture) -> list[Picture]:
        """Raise RecipeError if the picture's channels are not those of the processor."""
        channels = example.pixels.shape[2]
        if self._channels is not None and channels not in (1, self._channels):
            raise RecipeError(
                f"model.base: a picture has {channels} channels, the model's image processor takes "
                f"{self._channels}"
            )
        return [example]  # pixel values are made when they are used

    def pixel_values(self, items: Sequence[Picture]) -> torch.Tensor:
        """Return the model's input: float32, shape (items, channels, height, width)."""
        new = [item for item in dict.fromkeys(items) if item not in self._cache]
        pixels = [item.pixels for item in new]
        if self._channels is not None:
            pixels = [self._with_channels(values, self._channels) for values in pixels]
        new_values: dict[Picture, torch.Tensor] = {}
        if new:
            with torch.device("cpu"):
                batch = self.processor(
                    images=pixels, return_tensors="pt", input_data_format="channels_last"
                )
            new_values = dict(zip(new, batch["pixel_values"].float(), strict=True))
        values = torch.stack(
            [new_values[item] if item in new_values else self._cache[item] for item in items]
        )
        for item, tensor in new_values.items():
            size = tensor.numel() * tensor.element_size()
            if self._room >= size:
                self._room -= size
                self._cache[item] = tensor.clone()  # not a view of the whole batch
        return values

    @staticmethod
    def _with_channels(pixels: NDArray[Any], channels: int) -> NDArray[Any]:
        """Return a picture, a grey one repeated for each channel."""
        if pixels.shape[2] < channels:
            return np.repeat(pixels, channels, axis=2)
        return pixels

    def scores(
        self, model: Any, items: Sequence[Picture], at_once: int | None = None
    ) -> torch.Tensor:
        """Return the classes' logits."""
        first = next(model.parameters())
        values = to_device(self.pixel_values(items), first.device).to(first.dtype)
        logits: torch.Tensor = model(pixel_values=values).logits
        logits = logits.float()
        if self.outputs is None:
            return logits
        return logits[:, list(self.outputs)]
