"""Writes small CIFAR folders in their binary form, and makes tiny image classifiers."""

import numpy as np
import torch


def cifar_records(labels, seed, classes):
    """Each picture's labels, and 3,072 bytes of noise, brighter the higher its last label."""
    noise = np.random.default_rng(seed).integers(0, 100, (len(labels), 3072))
    labels = np.array(labels).reshape(len(labels), -1)
    return np.hstack([labels, noise + 150 * labels[:, -1:] // classes]).astype(np.uint8).tobytes()


def write_cifar10(folder, each=24, test=20):
    """Write CIFAR-10's binary folder: five batches of `each` pictures, a test batch, and the
    names.
    """
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        labels = [(3 * i + number) % 10 for i in range(test if name == "test_batch" else each)]
        (folder / f"{name}.bin").write_bytes(cifar_records(labels, number, 10))
    names = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    return folder


def write_cifar100(folder, train=200, test=20):
    """Write CIFAR-100's binary folder."""
    folder.mkdir(parents=True)
    for number, (name, count) in enumerate((("train", train), ("test", test))):
        labels = [(7 * i % 100 // 5, 7 * i % 100) for i in range(count)]
        (folder / f"{name}.bin").write_bytes(cifar_records(labels, number, 100))
    for kind, count in (("fine", 100), ("coarse", 20)):
        (folder / f"{kind}_label_names.txt").write_text(
            "".join(f"{kind} {i:02d}\n" for i in range(count))
        )
    return folder


def tiny_classifier(kind, classes=3, seed=0):
    """A random image classifier of transformers: "vit" or "resnet".

    The second has its statistics off their start.
    """
    from transformers import (
        ResNetConfig,
        ResNetForImageClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    torch.manual_seed(seed)
    names = {i: f"thing {i}" for i in range(classes)}
    labels = {"id2label": names, "label2id": {name: i for i, name in names.items()}}
    if kind == "vit":
        sizes = {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        }
        return ViTForImageClassification(
            ViTConfig(image_size=16, patch_size=8, **sizes, **labels)
        ).eval()
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(**sizes, **labels)).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
    return model
