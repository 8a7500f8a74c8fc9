"""Make the project's small image classifier: a ResNet that knows the digits 0 to 4.

    python scripts/make_digits_base.py --out DIR

It learns from images that `fedseed.tasks.pictures` sets aside: no client and no test of the task
"digits" has them. Besides the digit it learns how an image was turned or mirrored, an exercise that
makes its features useful for digits it has never seen. The same machine and library versions give
the same checkpoint.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import transformers
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

from fedseed.tasks.pictures import BASE, SIZE, digit_pictures

BASE_CLASSES = (0, 1, 2, 3, 4)
SIDE = 32  # what images are enlarged to: the network halves them four times
POSES = 8  # quarter turns, mirrored or not


def make_model() -> ResNetForImageClassification:
    """The untrained network."""
    names = [str(digit) for digit in BASE_CLASSES]
    config = ResNetConfig(
        num_channels=1,
        embedding_size=16,
        hidden_sizes=[16, 32, 64],
        depths=[1, 1, 1],
        layer_type="basic",
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    return ResNetForImageClassification(config)


def make_processor() -> ViTImageProcessor:
    """Enlarge to 32 x 32 pixels, scale to [-1, 1]."""
    return ViTImageProcessor(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5], image_std=[0.5]
    )


def distorted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image turned, sheared, scaled and shifted a little, with some noise.

    Values from -1 to 1.
    """
    count = len(images)

    def uniform(width: float) -> torch.Tensor:
        return (torch.rand(count, generator=generator) - 0.5) * width

    angle, scale, shear = uniform(0.5), 1 + uniform(0.3), uniform(0.4)
    rows = (
        torch.stack([scale * angle.cos(), -scale * angle.sin() + shear, uniform(0.5)], 1),
        torch.stack([scale * angle.sin(), scale * angle.cos(), uniform(0.5)], 1),
    )
    grid = affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    # what comes in from outside is paper
    moved = grid_sample(images + 1, grid, align_corners=False) - 1
    return moved + 0.1 * torch.randn(images.shape, generator=generator)


def posed(images: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
    """Each image in one of eight poses."""
    turned = [
        torch.rot90(i.flip(-1) if p >= 4 else i, p % 4, (1, 2))
        for i, p in zip(images, poses.tolist(), strict=True)
    ]
    return torch.stack(turned)


def train(
    model: ResNetForImageClassification, steps: int, batch: int, rate: float, seed: int
) -> None:
    """Learn digit and pose together, and the digits alone from upright images."""
    pictures = digit_pictures(BASE_CLASSES, -BASE, SIZE)
    images = (
        torch.stack([torch.from_numpy(p.pixels).permute(2, 0, 1) for p in pictures]).float() / 127.5
        - 1
    )
    labels = torch.tensor([p.label for p in pictures])
    generator = torch.Generator().manual_seed(seed)
    exercise = torch.nn.Linear(model.config.hidden_sizes[-1], POSES * len(BASE_CLASSES))
    optimiser = torch.optim.AdamW(
        [*model.parameters(), *exercise.parameters()], lr=rate, weight_decay=0.05
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    print(f"{len(pictures)} images, {steps:,} steps", flush=True)
    began = time.monotonic()
    model.train()
    for step in range(1, steps + 1):
        chosen = torch.randint(len(labels), (batch,), generator=generator)
        poses = torch.randint(POSES, (batch,), generator=generator)
        inputs = posed(distorted(images[chosen], generator), poses)
        features = model.resnet(
            pixel_values=interpolate(inputs, size=SIDE, mode="bilinear")
        ).pooler_output
        digits, upright = labels[chosen], poses == 0
        loss = cross_entropy(
            exercise(features.flatten(1)), digits * POSES + poses, label_smoothing=0.1
        )
        if upright.any():
            alone = cross_entropy(
                model.classifier(features[upright]), digits[upright], reduction="sum"
            )
            loss = loss + alone * POSES / batch
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(
                f"step {step:5d}  loss {loss.item():.3f}  {time.monotonic() - began:4.0f} s",
                flush=True,
            )
    model.eval()


@torch.no_grad()
def accuracy(model: ResNetForImageClassification) -> float:
    """Percent of the images of digits 0 to 4 that are not the base's own."""
    pictures = digit_pictures(BASE_CLASSES)
    processor = make_processor()
    values = processor(
        images=[p.pixels for p in pictures], return_tensors="pt", input_data_format="channels_last"
    ).pixel_values
    predicted = model(pixel_values=values).logits.argmax(1).tolist()
    right = sum(guess == picture.label for guess, picture in zip(predicted, pictures, strict=True))
    return 100 * right / len(pictures)


CARD = """\
---
license: apache-2.0
---

# The digits base of fedseed

A ResNet with {parameters:,} parameters that tells handwritten digits from 0 to 4 apart, made so that the vision methods
can be tried offline: a federation gives it a new head and tunes it on all ten digits. It is a stand-in.

| | |
|---|---|
| made by | `python scripts/make_digits_base.py --out DIR`, seed {seed} |
| made with | torch {torch}, transformers {transformers} |
| images | scikit-learn's `load_digits` (UCI, Alpaydin and Kaynak 1998): {images} of the digits 0 to 4, \
from the {base} that the task "digits" sets aside; no client and no test has them |
| exercise | the digit, and which of eight turned or mirrored poses the image is in; {steps:,} steps of {batch} |
| input | one channel, enlarged from 8 x 8 to 32 x 32 pixels |
| accuracy | {accuracy:.1f}% on the {others} other images of these digits |
"""


def main() -> None:
    """Make the base and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = make_model()
    train(model, args.steps, args.batch, args.rate, args.seed)
    found = accuracy(model)
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    make_processor().save_pretrained(args.out)
    card = CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        seed=args.seed,
        torch=torch.__version__,
        transformers=transformers.__version__,
        images=len(digit_pictures(BASE_CLASSES, -BASE, SIZE)),
        base=BASE,
        steps=args.steps,
        batch=args.batch,
        accuracy=found,
        others=len(digit_pictures(BASE_CLASSES)),
    )
    (args.out / "README.md").write_text(card, encoding="utf-8")
    print(f"accuracy on other images {found:.1f}%, written to {args.out}", flush=True)


if __name__ == "__main__":
    main()
