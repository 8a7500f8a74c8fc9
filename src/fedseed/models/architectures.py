"""The classes that load models of each architecture, and the architecture that a base's
configuration names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.models.auto import modeling_auto

# what a model predicts
Architecture = Literal["causal", "masked", "seq2seq", "classification", "image"]


@dataclass(frozen=True)
class Loader:
    """The classes and options that load models of one architecture."""

    description: str  # what such a model is, for messages
    auto: Any  # the transformers class that loads them
    # what transformers calls the table of such classes
    mapping: str

    def auto_for(self, config: Mapping[str, Any]) -> Any:
        """Return the transformers class that loads a base with this config.json."""
        is_causal = self.auto is AutoModelForCausalLM
        if is_causal and hears_besides(config) and config.get("model_type") not in self.names:
            return AutoModelForSeq2SeqLM
        return self.auto

    @property
    def names(self) -> Mapping[str, Any]:
        """Return the classes of such models, by model type."""
        names: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{self.mapping}_MAPPING_NAMES")
        return names

    def classes(self) -> set[str]:
        """Return the names of all classes of such models."""
        classes: set[str] = set()
        for names in self.names.values():
            classes |= {names} if isinstance(names, str) else set(names)
        return classes

    def processor(self, place: str, trust_remote_code: bool) -> Any:
        """Return a folder's or hub name's tokenizer or image processor.

        Raises OSError or ValueError if incomplete.
        """
        if self.auto is AutoModelForImageClassification:
            # it brings image libraries, which take a second to load
            from transformers import AutoImageProcessor

            return AutoImageProcessor.from_pretrained(place, trust_remote_code=trust_remote_code)
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
        except (
            BaseException
        ) as error:  # a bad regex or normaliser: a bare Exception, or a panic, which is not one
            if isinstance(
                error, OSError | ValueError | ImportError | KeyboardInterrupt | SystemExit
            ):
                raise
            raise ValueError(f"tokenizers refuses it: {error}") from error
        # without its files, transformers makes up some tokenizers from the model's type, with
        # special tokens only
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
            raise ValueError("it has no tokenizer files (such as tokenizer.json)")
        return tokenizer


LOADERS: dict[Architecture, Loader] = {
    "causal": Loader(
        "a language model that continues text, such as OPT or LLaMA",
        AutoModelForCausalLM,
        "CAUSAL_LM",
    ),
    "seq2seq": Loader(
        "an encoder-decoder, such as T5 or BART", AutoModelForSeq2SeqLM, "SEQ_TO_SEQ_CAUSAL_LM"
    ),
    "masked": Loader(
        "a language model that fills in masks, such as RoBERTa", AutoModelForMaskedLM, "MASKED_LM"
    ),
    "classification": Loader(
        "a text model that can have a classification head, such as BERT, RoBERTa or LLaMA",
        AutoModelForSequenceClassification,
        "SEQUENCE_CLASSIFICATION",
    ),
    "image": Loader(
        "an image classifier, such as ViT or ResNet",
        AutoModelForImageClassification,
        "IMAGE_CLASSIFICATION",
    ),
}


# models of texts with blanks, which transformers reads from left to right where config.json has
# "is_decoder": true; otherwise a later token changes an earlier one's prediction
BOTH_WAYS = frozenset(
    {
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)


def sees_ahead_unless_told(config: Mapping[str, Any]) -> bool:
    """Return whether a base reads in both directions unless it is told to be a decoder."""
    return config.get("model_type") in BOTH_WAYS and not config.get("is_decoder")


def hears_besides(config: Mapping[str, Any]) -> bool:
    """Return whether a base continues text and also takes audio, such as Qwen2-Audio.

    transformers lists these classes among the encoder-decoders, which they are not.
    """
    listed = LOADERS["seq2seq"].classes().intersection(config.get("architectures") or ())
    encodes = config.get("is_encoder_decoder") or config.get("model_type") in ENCODES
    return bool(listed) and not encodes


# encoder-decoders whose config.json does not say so, since it is their class' default
ENCODES = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers"})


def architecture_of(config: Mapping[str, Any], classifies: bool = False) -> Architecture:
    """Return the architecture that a model's configuration names; "causal" if it names no known
    one.

    Args:
        config: the base's config.json.
        classifies: whether it is to tell classes apart: then of images, if it is a model of images,
            or else of texts.
    """
    classes, model_type = config.get("architectures") or (), config.get("model_type")
    if classifies:
        text = LOADERS["classification"]
        of_texts = text.classes().intersection(classes) or model_type not in LOADERS["image"].names
        if model_type in text.names and of_texts:
            return "classification"
        return "image"
    if hears_besides(config):
        return "causal"
    architectures = [
        kind for kind, loader in LOADERS.items() if loader.classes().intersection(classes)
    ]
    speaks = (
        not architectures
        and config.get("is_encoder_decoder")
        and model_type in LOADERS["seq2seq"].names
    )
    if speaks or "seq2seq" in architectures:  # BART's class is one for masks, too
        return "seq2seq"
    if architectures:
        return architectures[0]
    return "causal"
