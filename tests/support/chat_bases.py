"""Tiny random bases of three families, with tokenizers and chat templates in their families'
manner, made here.

The templates are our own, short ones. What matters of each family is in them: LLaMA's headers and
an end of turn that is not the end of the sequence; Qwen2's ChatML with tools, a default system
message and a newline after each turn; Gemma's "model", its refusal of a system role and of turns
that do not alternate."""

import json

from support.text_bases import save

TEXTS = [
    "You are a helpful assistant. Be short. What is the capital of France? Paris, of course. And "
    "of Italy? It is Rome.",
    "user assistant system model tool Thank you! Hello, how are you? I am well. Two and two make "
    "four. weather in Bonn",
] * 20

LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

QWEN = """{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- if tools %}
    {{- '<|im_start|>tools\n' }}{% for tool in tools %}{{- tool | tojson + '\n' }}{% endfor %}{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""

GEMMA = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

TEMPLATES = {"llama": LLAMA, "qwen2": QWEN, "gemma": GEMMA}
NAMES = {
    "llama": {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "pad_token": "<|end_of_text|>",
    },
    "qwen2": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "gemma": {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    },
}
SPECIAL = {
    "llama": [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "gemma": ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"],
}
END_OF_TURN = {"llama": "<|eot_id|>", "qwen2": "<|im_end|>", "gemma": "<end_of_turn>"}


def chat_tokenizer(family, template=None):
    """A tokenizer of a family's kind, trained on a few lines."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    # sentencepiece's manner: blanks are written out, unknown characters become bytes
    if family == "gemma":
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        alphabet = []
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = SPECIAL[family]
    trainer = trainers.BpeTrainer(
        vocab_size=460, special_tokens=special, initial_alphabet=alphabet, max_token_length=8
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if family == "gemma":
        parts = json.loads(tokenizer.to_str())
        vocabulary = parts["model"]["vocab"]
        for byte in range(256):
            vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
        tokenizer = Tokenizer.from_str(json.dumps(parts))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **NAMES[family], additional_special_tokens=special[2:]
    )
    fast.chat_template = TEMPLATES[family] if template is None else template
    return fast


def chat_base(folder, family, template=None):
    """Writes a tiny random base of a family, with its tokenizer, and returns the folder."""
    tokenizer = chat_tokenizer(family, template)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.1,
        **({"head_dim": 8} if family == "gemma" else {}),
    }
    tokens = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")
    }
    return save(folder, tokenizer, family, "AutoModelForCausalLM", {**sizes, **tokens})
