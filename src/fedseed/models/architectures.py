"""Architectures of models: the classes that load each of them, and how to find a base's from its
configuration.
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

# the kind of prediction that a model makes
Architecture = Literal["causal", "masked", "seq2seq", "classification", "image"]


@dataclass(frozen=True)
class Loader:
    """The classes and options that load models of one architecture."""

    description: str  # description of such a model, for messages
    auto: Any  # the transformers class that loads them
    # the name of transformers' table of these classes
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
        """Return the tokenizer or image processor of a folder or hub name.

        Raises OSError or ValueError if its files are incomplete.
        """
        if self.auto is AutoModelForImageClassification:
            # imported here because it imports image libraries, which takes a second
            from transformers import AutoImageProcessor

            return AutoImageProcessor.from_pretrained(place, trust_remote_code=trust_remote_code)
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
        # a bad regex or normaliser raises a bare Exception, or a panic, which is not an Exception
        except BaseException as error:
            if isinstance(
                error, OSError | ValueError | ImportError | KeyboardInterrupt | SystemExit
            ):
                raise
            raise ValueError(f"tokenizers rejects it: {error}") from error
        # without its files, transformers invents some tokenizers from the model's type, with only
        # special tokens
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
    "masked": Loader("a masked language model, such as RoBERTa", AutoModelForMaskedLM, "MASKED_LM"),
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


# masked language models, which transformers reads from left to right only if config.json has
# "is_decoder": true; otherwise later tokens change the predictions of earlier ones
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
    """Return whether a base reads in both directions unless it is configured as a decoder."""
    return config.get("model_type") in BOTH_WAYS and not config.get("is_decoder")


def hears_besides(config: Mapping[str, Any]) -> bool:
    """Return whether a base continues text and also takes audio, such as Qwen2-Audio.

    transformers lists these classes among the encoder-decoders, although they are not.
    """
    listed = LOADERS["seq2seq"].classes().intersection(config.get("architectures") or ())
    encodes = config.get("is_encoder_decoder") or config.get("model_type") in ENCODES
    return bool(listed) and not encodes


# encoder-decoders whose config.json does not say so, because it is their class's default
ENCODES = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers"})


def architecture_of(config: Mapping[str, Any], classifies: bool = False) -> Architecture:
    """Return the architecture named in a model's configuration; "causal" if it is not a known one.

    Args:
        config: the base's config.json.
        classifies: whether the model will be a classifier: of images, if it is an image model, and
            otherwise of texts.
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
    if speaks or "seq2seq" in architectures:  # because BART's class is also a masked language model
        return "seq2seq"
    if architectures:
        return architectures[0]
    return "causal"
