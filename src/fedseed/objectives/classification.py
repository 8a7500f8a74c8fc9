"""Objectives for models with a head: classification of texts (BERT, RoBERTa, LLaMA) or pictures
(ViT, ResNet), and regression on texts.
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

# how many bytes of pixel values are cached; further pictures are processed at each use
KEPT = 1 << 30


@dataclass(frozen=True)
class HeadText:
    """A tokenised text or pair of texts, with the tokenizer's special tokens."""

    ids: tuple[int, ...]
    # for each token of a pair, the number of its text (0 or 1), if the tokenizer gives it
    segments: tuple[int, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class ClassifiedText(HeadText):
    """A text and the number of its class."""

    gold: int


@dataclass(frozen=True)
class ScoredText(HeadText):
    """A text and the number to predict from it."""

    value: float


class OfTexts(TextObjective):
    """The common part of objectives for models with a head on texts.

    The arguments are those of `TextObjective`.

    Raises:
        ValueError: the tokenizer has no token for padding.
    """

    batch: ClassVar[int] = 64  # texts in an evaluation batch

    @property
    def needed(self) -> tuple[str, str]:  # type: ignore[override]
        """Return the required token, a padding token. No end token is needed, because none is added
        to a text.
        """
        if self.tokenizer.eos_token_id is None:
            return ("pad_token", "padding token")
        return TextObjective.needed

    def probe_ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def tokens_of(self, text: str, pair: str = "") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of a text or a pair, as in plain transformers, and the segments of a
        pair.
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

    For a `Choice` the input is its text or pair of texts, or its prompt if it has no text. For a
    `Cloze` it is the text with the tokenizer's mask token in the blank, or with nothing in it if
    there is no mask token. The arguments and errors are those of `OfTexts`.
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
        """Return the logits of the classes."""
        logits = self.head_outputs(model, items)
        if self.outputs is None:
            return logits
        return logits[:, list(self.outputs)]


class TextScores(OfTexts):
    """Regression: a head with one output predicts a number for each text or pair of texts.

    The loss is the squared error, as in transformers for `problem_type = "regression"`. Texts that
    are too long are dropped. The arguments and errors are those of `OfTexts`.
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
        """Return each item's squared error, shape (items,)."""
        values = to_device([item.value for item in items], predictions.device)
        return (predictions - values) ** 2

    def losses(self, model: Any, items: Sequence[ScoredText]) -> torch.Tensor:
        return self.losses_of(self.predictions(model, items), items)


class Images(Scoring):
    """Picture classification.

    The model's own image processor resizes, crops and normalises, with its settings and without
    randomness. A grey picture's channel is repeated if the processor needs three.

    Args:
        processor: a `transformers` image processor.
    """

    batch = 64

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self._room = KEPT
        self._cache: dict[Picture, torch.Tensor] = {}  # pictures are compared by identity
        mean = getattr(processor, "image_mean", None)
        self._channels = len(mean) if isinstance(mean, list | tuple) else None

    def items(self, example: Picture) -> list[Picture]:
        """Return the picture as the only item. Raises RecipeError if the processor does not take
        its number of channels.
        """
        channels = example.pixels.shape[2]
        if self._channels is not None and channels not in (1, self._channels):
            raise RecipeError(
                f"model.base: a picture has {channels} channels, but the model's image processor "
                f"takes {self._channels}"
            )
        return [example]  # pixel values are computed when they are used

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
                # a clone, because a view would keep the whole batch
                self._cache[item] = tensor.clone()
        return values

    @staticmethod
    def _with_channels(pixels: NDArray[Any], channels: int) -> NDArray[Any]:
        """Return a picture; the channel of a grey one is repeated."""
        if pixels.shape[2] < channels:
            return np.repeat(pixels, channels, axis=2)
        return pixels

    def scores(
        self, model: Any, items: Sequence[Picture], at_once: int | None = None
    ) -> torch.Tensor:
        """Return the logits of the classes."""
        first = next(model.parameters())
        values = to_device(self.pixel_values(items), first.device).to(first.dtype)
        logits: torch.Tensor = model(pixel_values=values).logits
        logits = logits.float()
        if self.outputs is None:
            return logits
        return logits[:, list(self.outputs)]
