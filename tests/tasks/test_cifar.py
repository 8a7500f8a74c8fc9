import io
import json

import numpy as np
import pytest

from fedseed import Federation, Orbit
from fedseed.errors import RecipeError
from fedseed.models.heads import Head
from fedseed.models.loading import load_model
from fedseed.tasks import CIFAR10Task, CIFAR100Task
from fedseed.tasks.partition import IID, ByField, Dirichlet, Quantity
from support.tiers import tiered

pytestmark = pytest.mark.usefixtures("without_pictures")

METHODS = {
    "feedsign": ["method.name=feedsign", "method.batch=4", "method.learning_rate=0.01"],
    "zo-fedsgd": ["method.name=zo-fedsgd", "method.batch=4", "method.learning_rate=0.01"],
    "ferret": [
        "method.name=ferret",
        "method.directions=50",
        "method.training.learning_rate=0.01",
        "method.training.steps=2",
    ],
    "fedavg": ["method.name=fedavg", "method.training.learning_rate=0.01", "method.training.steps=2"],
}


def pictures(data):
    return [p for client in data.clients for p in client.examples]


def key(picture):
    return picture.pixels.tobytes(), picture.label


def test_pixels_and_labels_are_those_of_the_file(cifar10):
    folder = cifar10()
    data = CIFAR10Task(path=str(folder), clients=1).load()
    assert data.classes[0] == "airplane" and data.classes[9] == "truck" and len(data.classes) == 10
    expected = []
    for number in range(1, 6):
        rows = np.fromfile(folder / f"data_batch_{number}.bin", np.uint8).reshape(-1, 3073)
        expected += [(np.moveaxis(row[1:].reshape(3, 32, 32), 0, 2).tobytes(), int(row[0])) for row in rows]
    found = pictures(data)
    assert [key(p) for p in found] == expected  # one client has all of them in the files' order
    outer = CIFAR10Task(path=str(folder.parent), clients=1).load()  # the folder that holds it will do
    assert [key(p) for p in pictures(outer)] == expected
    assert all(p.pixels.shape == (32, 32, 3) and p.pixels.dtype == np.uint8 for p in found)
    assert len(data.evaluation[""]) == 20
    assert data.notes == (
        "120 training and 0 validation pictures of 120 in the train part, 20 test pictures of 20, 10 classes",
        "1 client holds 120 pictures of 10 classes (iid)",
    )


@pytest.mark.parametrize("partition", [IID(), Dirichlet(alpha=0.3), Quantity(alpha=1.0), ByField(field="class")])
def test_partitions_share_out_every_picture_once(cifar10, partition):
    folder = cifar10()
    clients = None if partition.kind == "field" else 4
    settings = {"path": str(folder), "clients": clients, "partition": partition, "validation": 30}
    data, again = CIFAR10Task(**settings).load(), CIFAR10Task(**settings).load()
    assert len(data.clients) == (10 if clients is None else 4) and len(data.validation) == 30
    held = [key(p) for p in pictures(data)] + [key(p) for p in data.validation]
    assert len(held) == len(set(held)) == 120
    assert [[key(p) for p in c.examples] for c in data.clients] == [[key(p) for p in c.examples] for c in again.clients]
    other = CIFAR10Task(**settings, seed=1).load()
    assert {key(p) for p in other.validation} != {key(p) for p in data.validation}
    if partition.kind == "field":
        assert all(len({p.label for p in c.examples}) == 1 for c in data.clients)


def test_choosing_settings_never_sees_the_test_pictures(cifar10):
    path = str(cifar10())
    data = CIFAR10Task(path=path, validation=15, evaluate_on="validation", evaluation=7).load()
    assert list(data.evaluation) == [""] and data.evaluation[""] == data.validation
    assert len(CIFAR10Task(path=path, evaluation=7, examples=50).load().evaluation[""]) == 7
    with pytest.raises(RecipeError, match=r"task.validation = 0 keeps no example"):
        CIFAR10Task(path=path, evaluate_on="validation").load()
    with pytest.raises(RecipeError, match=r"task.examples = 100 and task.validation = 30: the train part has 120"):
        CIFAR10Task(path=path, examples=100, validation=30).load()


def test_cifar_100_has_classes_and_superclasses(cifar100):
    path = str(cifar100())
    data = CIFAR100Task(path=path, partition=ByField(field="superclass")).load()
    assert len(data.classes) == 100 and data.classes[42] == "fine 42"
    assert len(data.clients) == 20 and len(pictures(data)) == 200
    assert [{p.label // 5 for p in c.examples} for c in data.clients] == [{i} for i in range(20)]
    with pytest.raises(RecipeError, match=r'task.partition.field = "colour": "cifar100" has "class" and "superclass"'):
        CIFAR100Task(path=path, partition=ByField(field="colour")).load()


@tiered({"kind": ["vit", "resnet"], "method": METHODS}, together=2, quick=2)
def test_a_round_on_a_tiny_model(cifar10, image_base, tmp_path, kind, method):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("rounds = 1\n")
    base = image_base(kind)  # three classes: it gets a new head
    overrides = [
        *METHODS[method], f"model.base={base}", "task.name=cifar10", f"task.path={cifar10()}", "task.clients=3",
        "task.partition.kind=dirichlet", "task.partition.alpha=1.0",
    ]  # fmt: skip
    run = Federation.from_file(recipe, overrides, out=tmp_path / "run")
    before = {name: b.clone() for name, b in run.worker.space.model.named_buffers()}
    summary = run.run().summary
    assert summary["rounds"] == 1 and summary["skipped"] == 0
    assert set(summary["final"]) == {"loss", "accuracy"} and summary["final"]["loss"] != summary["baseline"]["loss"]
    assert all(torch_equal(b, before[name]) for name, b in run.worker.space.model.named_buffers())
    if method != "fedavg":
        orbit = Orbit.open(tmp_path / "run" / "model.orbit")
        model, _ = load_model(str(base), head=Head(orbit.header.classes, orbit.header.seed))
        assert orbit.replay(model) == summary["weights_digest"]


def torch_equal(a, b):
    return bool((a == b).all())


def test_what_is_wrong_in_a_file_is_named(cifar10, tmp_path):
    folder = cifar10()
    path, names = folder / "data_batch_4.bin", folder / "batches.meta.txt"
    good, listed = path.read_bytes(), names.read_text()
    for kept in (0, 1, 3072, 20_000, -1):
        path.write_bytes(good[:kept])
        with pytest.raises(RecipeError, match=r"data_batch_4.bin: [\d,]+ bytes are not whole records of 3,073"):
            CIFAR10Task(path=str(folder)).load()
    path.write_bytes(good[:3073] + b"\x0a" + good[3074:])
    with pytest.raises(RecipeError, match=r"data_batch_4.bin record 2: label is a number from 0 to 9, not 10"):
        CIFAR10Task(path=str(folder)).load()
    path.write_bytes(good)
    names.write_text("airplane\n")
    with pytest.raises(RecipeError, match=r"label is a number from 0 to 0, not"):
        CIFAR10Task(path=str(folder)).load()
    names.write_text(listed)
    path.unlink()
    with pytest.raises(RecipeError, match=r"data_batch_4.bin: can't be read: No such file"):
        CIFAR10Task(path=str(folder)).load()
    with pytest.raises(RecipeError, match=r"nowhere.*no such folder; give a folder with the hub's parquet files"):
        CIFAR10Task(path=str(tmp_path / "nowhere")).load()
    with pytest.raises(RecipeError, match=r"the folder has no test.bin; give .* or cifar-100-binary of"):
        CIFAR100Task(path=str(folder)).load()


def write_parquet(folder, columns, counts):
    """The hub's form: PNG bytes, label numbers, names in the schema's metadata."""
    pa = pytest.importorskip("pyarrow")
    from PIL import Image
    from pyarrow import parquet

    folder.mkdir()
    rng = np.random.default_rng(0)
    features = {c: {"names": [f"{c} {i}" for i in range(n)], "_type": "ClassLabel"} for c, n in columns.items()}
    for part, count in counts.items():
        images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        rows = []
        for image in images:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            rows.append({"bytes": file.getvalue(), "path": None})
        table = pa.table({"img": rows, **{c: [i % n for i in range(count)] for c, n in columns.items()}})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")
        np.save(folder / f"{part}.npy", images)
    return folder


def test_parquet_files_of_the_hub(tmp_path):
    folder = write_parquet(tmp_path / "cifar10", {"label": 10}, {"train": 30, "test": 10})
    data = CIFAR10Task(path=str(folder), clients=1).load()
    assert data.classes[3] == "label 3"
    assert (np.stack([p.pixels for p in pictures(data)]) == np.load(folder / "train.npy")).all()
    assert [p.label for p in data.evaluation[""]] == list(range(10))
    hundred = write_parquet(tmp_path / "cifar100", {"fine_label": 100, "coarse_label": 20}, {"train": 40, "test": 5})
    data = CIFAR100Task(path=str(hundred), partition=ByField(field="superclass")).load()
    assert len(data.clients) == 20 and data.classes[7] == "fine_label 7"
    (folder / "test-00000-of-00001.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(RecipeError, match="not a parquet file, or damaged"):
        CIFAR10Task(path=str(folder)).load()
