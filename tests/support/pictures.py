"""Writes small CIFAR folders as Python 2 pickled them, and makes tiny image classifiers."""

import io
import pickle
import struct

import numpy as np
import torch


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2's cPickle wrote with protocol 2, as CIFAR's files were: texts are byte strings."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, value):
        data = value if isinstance(value, bytes) else value.encode("latin1")
        short = len(data) < 256
        self.write(
            pickle.SHORT_BINSTRING + bytes([len(data)]) + data
            if short
            else pickle.BINSTRING + struct.pack("<i", len(data)) + data
        )
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string

    def save_global(self, value, name=None):
        module = {"numpy._core.multiarray": "numpy.core.multiarray"}.get(value.__module__, value.__module__)
        self.write(pickle.GLOBAL + f"{module}\n{name or value.__qualname__}\n".encode())
        self.memoize(value)

    dispatch[type] = save_global


def python2_pickle(value):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def cifar_pixels(labels, seed, classes):
    """Rows of 3,072 bytes: noise, brighter the higher the label."""
    noise = np.random.default_rng(seed).integers(0, 100, (len(labels), 3072))
    return (noise + 150 * np.array(labels)[:, None] // classes).astype(np.uint8)


def write_cifar10(folder, each=24, test=20):
    """Write CIFAR-10's python folder: five batches of `each` pictures, a test batch, and the names."""
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        count = test if name == "test_batch" else each
        labels = [(3 * i + number) % 10 for i in range(count)]
        batch = {
            "data": cifar_pixels(labels, number, 10),
            "labels": labels,
            "batch_label": f"batch {number} of 6",
            "filenames": [f"picture_{number}_{i}.png" for i in range(count)],
        }
        (folder / name).write_bytes(python2_pickle(batch))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    meta = {"num_cases_per_batch": each, "label_names": names, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(python2_pickle(meta))
    return folder


def write_cifar100(folder, train=200, test=20):
    """Write CIFAR-100's python folder."""
    folder.mkdir(parents=True)
    for number, (name, count) in enumerate((("train", train), ("test", test))):
        labels = [7 * i % 100 for i in range(count)]
        batch = {
            "data": cifar_pixels(labels, number, 100),
            "fine_labels": labels,
            "coarse_labels": [label // 5 for label in labels],
            "batch_label": f"{name} batch 1 of 1",
            "filenames": [f"{name}_{i}.png" for i in range(count)],
        }
        (folder / name).write_bytes(python2_pickle(batch))
    meta = {
        "fine_label_names": [f"fine {i:02d}" for i in range(100)],
        "coarse_label_names": [f"coarse {i:02d}" for i in range(20)],
    }
    (folder / "meta").write_bytes(python2_pickle(meta))
    return folder


def tiny_classifier(kind, classes=3, seed=0):
    """A random image classifier of transformers: "vit" or "resnet"; the second has its statistics off their start."""
    from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    names = {i: f"thing {i}" for i in range(classes)}
    labels = {"id2label": names, "label2id": {name: i for i, name in names.items()}}
    if kind == "vit":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        return ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **sizes, **labels)).eval()
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(**sizes, **labels)).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
    return model
