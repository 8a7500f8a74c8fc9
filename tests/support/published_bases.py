"""Tiny random bases of the architectures that the published recipes name, in the files that the hub
has of them.

Sizes are tiny; kinds are those of the checkpoint: the configuration's class and what it sets apart
from sizes, a tokenizer of the checkpoint's class with its special tokens, trained here, or its
image processor with its own settings; the dtype and the form of the weights' file."""

import json

import torch

# words that a base should have as tokens of their own: label words, and the prompts that fill a
# tiny context otherwise
TEXT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n### Instruction:\n### "
    "Input:\n### Response:\n"
    " terrible bad okay good great Yes Maybe No Description Entity Expression Human Location "
    "Number It was a film Do what says. answer train test number so-so"
)
LAYERS, HIDDEN = 2, 16


def write_base(name, folder):
    """Write the base that stands for a checkpoint of the hub, and return its folder.

    Args:
        name: the checkpoint's name on the hub.
        folder: to write into.
    """
    torch.manual_seed(0)
    BASES[name](folder)
    return folder


# -- language models
# -----------------------------------------------------------------------------------------------


def opt(folder):
    """OPT: GPT-2's byte pairs (vocab.json, merges.txt), </s> at the start as at the end, 16-bit
    weights in a .bin.
    """
    from transformers import OPTConfig, OPTForCausalLM

    size = byte_pairs(folder, ["<s>", "<pad>", "</s>", "<unk>"])
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    tokenizer = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_bos_token": True,
        "errors": "replace",
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = OPTConfig(
        vocab_size=size,
        hidden_size=HIDDEN,
        word_embed_proj_dim=HIDDEN,
        ffn_dim=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=2048,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    )
    save(OPTForCausalLM(config).half(), folder, binary=True)


def roberta(folder, **sizes):
    """RoBERTa: byte pairs with <s>, </s> and <mask>, 32-bit weights, 514 positions of which two are
    never used.
    """
    from transformers import RobertaConfig, RobertaForMaskedLM

    size = byte_pairs(folder, ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "RobertaTokenizer"})
    )
    defaults = {
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
    }
    config = RobertaConfig(
        vocab_size=size,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        layer_norm_eps=1e-5,
        **{**defaults, **sizes},
    )
    torch.manual_seed(0)
    save(RobertaForMaskedLM(config), folder)


def byte_pairs(folder, first, last=()):
    """Write vocab.json and merges.txt of byte-level pairs; returns how many tokens there are."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        [TEXT] * 5, vocab_size=700, min_frequency=2, special_tokens=first, show_progress=False
    )
    trained.save_model(str(folder))
    words = json.loads((folder / "vocab.json").read_text())
    words.update({word: len(words) + at for at, word in enumerate(last)})
    (folder / "vocab.json").write_text(json.dumps(words))
    return len(words)


def llama(folder, binary=False):
    """LLaMA: sentencepiece's pairs with bytes for what they lack, no token for padding, untied
    16-bit weights.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizer

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.Metaspace()
    pairs.train_from_iterator([TEXT] * 5, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    learnt = json.loads(pairs.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += sorted(learnt["vocab"], key=learnt["vocab"].get)
    tokenizer = LlamaTokenizer(
        vocab={piece: number for number, piece in enumerate(dict.fromkeys(pieces))},
        merges=[tuple(pair) for pair in learnt["merges"]],
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    save(LlamaForCausalLM(config).half(), folder, binary)


def save(model, folder, binary=False):
    """Write a model's configuration and weights, as safetensors or as torch pickles them."""
    if binary:
        model.config.architectures = [type(model).__name__]
        model.config.dtype = model.dtype
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    else:
        model.save_pretrained(folder)


# -- image classifiers
# ---------------------------------------------------------------------------------------------


def vit(folder):
    """ViT without a head: 224 x 224 pixels in patches of 16, its processor's mean and deviation one
    half.
    """
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=24
    )
    save(ViTModel(config), folder)
    ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(folder)


def resnet(folder):
    """ResNet-18: four stages of two basic blocks, ImageNet's thousand classes.

    ConvNeXT's processor, fewer pixels.
    """
    from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification

    names = {number: f"thing {number}" for number in range(1000)}
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 8, 16],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    save(ResNetForImageClassification(config), folder)
    ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875).save_pretrained(folder)


BASES = {
    "facebook/opt-125m": opt,
    "facebook/opt-13b": opt,
    "datajuicer/LLaMA-1B-dj-refine-150B": llama,
    "openlm-research/open_llama_3b": lambda folder: llama(folder, binary=True),
    "meta-llama/Llama-2-7b-hf": llama,
    "roberta-large": roberta,
    "google/vit-large-patch16-224-in21k": vit,
    "microsoft/resnet-18": resnet,
}
