"""Image classification: pictures to pixel values by the model's own image processor, cross-entropy, accuracy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Scoring
from fedseed.tasks.data import Picture

KEPT = 1 << 30  # bytes of pixel values that are kept; beyond, a picture is processed each time it is used


class Images(Scoring):
    """Which class a picture shows.

    Resizing, cropping and normalising are the processor's, with its own settings; nothing is random. Grey pictures are
    repeated for a processor with three channels.

    Args:
        processor: a `transformers` image processor.
        kept: bytes of pixel values kept in memory.
    """

    def __init__(self, processor: Any, kept: int = KEPT) -> None:
        self.processor = processor
        self.dropped = 0
        self._kept = kept
        self._made: dict[Picture, torch.Tensor] = {}  # a picture is a key by its identity
        mean = getattr(processor, "image_mean", None)
        self._channels = len(mean) if isinstance(mean, list | tuple) else None

    def prepare(self, examples: Sequence[Picture]) -> list[Picture]:
        """The pictures as they are: pixel values are made when they are used.

        Raises:
            RecipeError: a picture's channels are not those of the processor.
        """
        for example in examples:
            channels = example.pixels.shape[2]
            if self._channels is not None and channels not in (1, self._channels):
                raise RecipeError(
                    f"model.base: a picture has {channels} channels, the model's image processor takes {self._channels}"
                )
        return list(examples)

    def pixel_values(self, items: Sequence[Picture]) -> torch.Tensor:
        """What the model is given: float32, shape (items, channels, height, width)."""
        new = [item for item in dict.fromkeys(items) if item not in self._made]
        made = dict(zip(new, self._process(new), strict=True)) if new else {}
        values = torch.stack([made[item] if item in made else self._made[item] for item in items])
        for item, tensor in made.items():
            size = tensor.numel() * tensor.element_size()
            if self._kept >= size:
                self._kept -= size
                self._made[item] = tensor.clone()  # not a view of the whole batch
        return values

    def _process(self, items: Sequence[Picture]) -> torch.Tensor:
        pixels = [item.pixels for item in items]
        if self._channels is not None:
            pixels = [np.repeat(p, self._channels, axis=2) if p.shape[2] < self._channels else p for p in pixels]
        with torch.device("cpu"):
            batch = self.processor(images=pixels, return_tensors="pt", input_data_format="channels_last")
        values: torch.Tensor = batch["pixel_values"]
        return values.float()

    def scores(self, model: Any, items: Sequence[Picture], at_once: int | None = None) -> torch.Tensor:
        """Returns the classes' logits."""
        first = next(model.parameters())
        values = self.pixel_values(items).to(device=first.device, dtype=first.dtype)
        logits: torch.Tensor = model(pixel_values=values).logits
        return logits.float()
