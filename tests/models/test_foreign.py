"""A base's folder of somebody else's: nothing of it is run, and no file outside of it is read."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

import fedseed
from fedseed.errors import RecipeError
from fedseed.models.foreign import own_code
from fedseed.models.loading import load_model, outline

SMALL = Path(fedseed.__file__).parent / "base" / "small"


@pytest.fixture
def base(tmp_path):
    return Path(shutil.copytree(SMALL, tmp_path / "base"))


def change(path, **values):
    path.write_text(
        json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values})
    )


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", 3])
def test_an_index_names_files_of_its_own_folder_only(base, name):
    (base / "model.safetensors").rename(base / "model-1.safetensors")
    change(
        base / "model.safetensors.index.json",
        metadata={},
        weight_map={"w": "model-1.safetensors", "x": name},
    )
    with pytest.raises(
        RecipeError,
        match=r"model\.safetensors\.index\.json names .*, but weights must be in the base's own",
    ):
        load_model(str(base))


@pytest.mark.parametrize("text", ["{}", "[" * 100_000])
def test_an_index_that_is_none(base, text):
    (base / "model.safetensors.index.json").write_text(text)
    with pytest.raises(RecipeError, match="is not an index of weights"):
        load_model(str(base))


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": {"AutoConfig": "evil.Config"}},
        {"_attn_implementation": "owner/kernel"},
        {"text_config": [{"attn_implementation": {"": "owner/kernel"}}]},
    ],
)
def test_code_that_a_configuration_names_is_not_fetched(base, config):
    change(base / "config.json", **config)
    with pytest.raises(
        RecipeError, match=r"it contains its own code \(\w+ in config.json\), which runs only"
    ):
        load_model(str(base))
    assert own_code(str(base), {"attn_implementation": "sdpa"}) == ""


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["pickle", "archive", "packed archive"])
def test_pickled_weights_are_not_run(base, tmp_path, form):
    (base / "model.safetensors").unlink()
    data, victim = pickle.dumps(Touch(tmp_path / "victim"), protocol=2), tmp_path / "victim"
    if form == "pickle":
        (base / "pytorch_model.bin").write_bytes(data)
    else:
        packing = zipfile.ZIP_DEFLATED if form == "packed archive" else zipfile.ZIP_STORED
        with zipfile.ZipFile(base / "pytorch_model.bin", "w", packing) as archive:
            archive.writestr("archive/data.pkl", data)
            archive.writestr("archive/version", "3\n")
            archive.writestr("archive/data/0", bytes(10_000_000))
    with pytest.raises(
        RecipeError,
        match="is compressed" if form == "packed archive" else ("a pickle with more than"),
    ):
        load_model(str(base))
    assert not victim.exists()


def test_a_configuration_without_an_end(base):
    (base / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(RecipeError, match="no model can be loaded from the folder"):
        load_model(str(base))


@pytest.mark.parametrize(
    "values",
    [
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "(a"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
)
def test_a_tokenizer_that_fails_is_refused(base, values):
    change(base / "tokenizer.json", **values)
    with pytest.raises(RecipeError, match=r"its tokenizer or image processor can't be loaded"):
        load_model(str(base))


@pytest.mark.parametrize("make", [load_model, outline])
def test_layers_without_end_are_refused(base, make):
    change(base / "config.json", num_hidden_layers=10**9)
    with pytest.raises(
        RecipeError,
        match=(r"num_hidden_layers = 1,000,000,000 in config.json: fedseed builds at most 4,096"),
    ):
        make(str(base))
