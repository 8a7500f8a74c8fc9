"""What is trained is what plain transformers asks: an exported model answers there as it does here,
token by token.
"""

import pytest
import torch

from fedseed import Federation
from fedseed.errors import FedseedError
from fedseed.objectives.generation import Writer
from fedseed.objectives.losses import CausalLM
from fedseed.objectives.tokens import start_tokens
from fedseed.orbit.export import check_tokens, export_model
from fedseed.runs.tuned import find_source, open_tuned
from support.chat_bases import END_OF_TURN, TEXTS, chat_base, chat_tokenizer
from support.instruction_files import write_lines
from support.text_bases import save
from support.tiers import mark

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "initializer_range": 0.2,
}
LLAMA = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "initializer_range": 0.2}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0, "initializer_factor": 5.0}
OPT = {
    **SIZES,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 64,
    "init_std": 0.2,
}
SENTENCES = "▁"  # sentencepiece's blank; else tokens are of bytes
# the family: its class and sizes, what its tokenizer puts around a text, the names of its tokens,
# and its blanks
KINDS = {
    "gpt2": ("gpt2", GPT2, "{}", {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, ""),
    "pythia": ("gpt_neox", LLAMA, "{}", {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, ""),
    "llama-2": ("llama", LLAMA, "<s> {}", {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, SENTENCES),
    "llama-3": ("llama", LLAMA, "<|begin|> {}", {"bos": "<|begin|>", "eos": "<|end|>"}, ""),
    "mistral": (
        "mistral",
        LLAMA,
        "<s> {}",
        {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
        SENTENCES,
    ),
    "qwen2": ("qwen2", LLAMA, "{}", {"eos": "<|im_end|>", "pad": "<|endoftext|>"}, ""),
    "gemma": (
        "gemma",
        {**LLAMA, "head_dim": 16},
        "<bos> {}",
        {"bos": "<bos>", "eos": "<eos>"},
        SENTENCES,
    ),
    "opt": ("opt", OPT, "</s> {}", {"bos": "</s>", "eos": "</s>", "pad": "<pad>"}, ""),
    "bloom": (
        "bloom",
        {"hidden_size": 32, "n_layer": 1, "n_head": 2},
        "{}",
        {"bos": "<s>", "eos": "</s>"},
        "",
    ),
    "glm": (
        "llama",
        LLAMA,
        "[gMASK] <sop> {}",
        {"bos": "[gMASK]", "eos": "<|endoftext|>", "unk": "<sop>"},
        "",
    ),
    "t5": ("t5", T5, "{} </s>", {"eos": "</s>", "pad": "<pad>", "unk": "<unk>"}, SENTENCES),
}
PROMPTS = [
    "Hello, how are you?",
    "Two  and\ntwo",
    "é",
    "What is the capital of Italy?",
    "user assistant",
]


def tokenizer_of(kind):
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    _, _, around, names, blank = KINDS[kind]
    special = sorted(set(names.values()))
    tokenizer, alphabet = (
        Tokenizer(models.BPE(unk_token=names.get("unk"))),
        pre_tokenizers.ByteLevel.alphabet(),
    )
    if blank:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(blank), normalizers.Replace(" ", blank)]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(blank, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = []
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=sorted(alphabet)
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if around != "{}":
        used = [(word, tokenizer.token_to_id(word)) for word in special if word in around.split()]
        tokenizer.post_processor = processors.TemplateProcessing(
            around.replace("{}", "$A"), special_tokens=used
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": text for name, text in names.items()}
    )


def tuned(folder, base, task, more=""):
    """A short run's model, from the run's folder, and exported."""
    (folder / "my.toml").write_text(
        f'rounds = 1\n[model]\nbase = "{base}"\n[task]\nname = "files"\nevaluation = '
        f"0.3\nvalidation = 0\n{task}\n"
        f'[evaluation]\nrouge = false\n[method]\nname = "fedsgd"\nlearning_rate = 0.1\n{more}'
    )
    Federation.from_file(folder / "my.toml", out=folder / "run").run()
    found = open_tuned(find_source(str(folder / "run")))
    export_model(folder / "exported", found.model, found.processor, found.header, found.facts)
    return found


def plain(folder):
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = (
        transformers.AutoModelForSeq2SeqLM
        if config.is_encoder_decoder
        else transformers.AutoModelForCausalLM
    )
    return kind.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", mark(KINDS, lambda kind: kind not in ("gpt2", "llama-2", "glm", "t5"))
)
def test_an_exported_model_answers_in_transformers_as_here(tmp_path, quickly, kind):
    family, sizes, _, names, _ = KINDS[kind]
    tokenizer = tokenizer_of(kind)
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(text)
        for name, text in names.items()
        if name != "unk"
    }
    save(
        tmp_path / "base",
        tokenizer,
        family,
        "AutoModelFor" + ("Seq2Seq" if kind == "t5" else "Causal") + "LM",
        {**sizes, **ids},
    )
    write_lines(
        tmp_path / "data.jsonl", [{"prompt": p, "completion": f" {p[:3]}"} for p in PROMPTS]
    )
    ours = tuned(tmp_path, tmp_path / "base", f'path = "{tmp_path}/data.jsonl"\nclients = 1')
    model, tokenizer = plain(tmp_path / "exported")
    writer, answers = Writer(ours.model, ours.processor, 8), set()
    for prompt in PROMPTS:
        asked = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        if kind != "t5":
            assert (
                list(CausalLM(ours.processor).prompt_ids(prompt)) == asked["input_ids"][0].tolist()
            )
        with torch.no_grad():
            answer = model.generate(**asked, max_new_tokens=8, do_sample=False)[0]
        new = answer[0 if kind == "t5" else asked["input_ids"].shape[1] :]
        answers.add(writer.continue_prompt(prompt).text)
        assert tokenizer.decode(new, skip_special_tokens=True) in answers
    assert len(answers) > 1


def test_the_beginning_is_the_tokenizers_own():
    found = {
        kind: (made := tokenizer_of(kind)).convert_ids_to_tokens(start_tokens(made))
        for kind in KINDS
    }
    assert found == {
        kind: around.split()[: around.split().index("{}")]
        for kind, (_, _, around, _, _) in KINDS.items()
    }


OWN = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }}<|im_end|>\n{% endfor "
    "%}{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.mark.long
def test_a_template_of_the_recipe_is_exported(tmp_path, quickly):
    chat_base(tmp_path / "base", "qwen2")
    (tmp_path / "own.jinja").write_text(OWN)
    turns = [{"role": "user", "content": "Hello"}]
    write_lines(
        tmp_path / "data.jsonl",
        [{"messages": [*turns, {"role": "assistant", "content": "Hi."}]}] * 4,
    )
    task = f'path = "{tmp_path}/data.jsonl"\nclients = 1\nchat_template = "{tmp_path}/own.jinja"'
    ours = tuned(tmp_path, tmp_path / "base", task)
    (tmp_path / "own.jinja").unlink()  # the run has kept it
    model, tokenizer = plain(tmp_path / "exported")
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == f"<user> Hello{END_OF_TURN['qwen2']}\n<assistant> "
    asked = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        answer = model.generate(**asked, max_new_tokens=8, do_sample=False)[
            0, asked["input_ids"].shape[1] :
        ]
    there = open_tuned(find_source(str(tmp_path / "run")))
    assert there.processor.chat_template == ours.processor.chat_template == OWN
    assert Writer(there.model, there.processor, 8).answer(turns).text == tokenizer.decode(
        answer, skip_special_tokens=True
    )


def test_a_tokenizer_that_is_written_as_another_one_is_refused(tmp_path):
    chat_tokenizer("llama").save_pretrained(tmp_path)
    check_tokens(tmp_path, chat_tokenizer("llama"))
    with pytest.raises(FedseedError, match="gives other tokens than the trained one"):
        check_tokens(tmp_path, chat_tokenizer("qwen2"))
    with pytest.raises(FedseedError, match="another chat template"):
        check_tokens(tmp_path, chat_tokenizer("llama", OWN))
