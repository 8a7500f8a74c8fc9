"""Tiny random checkpoints of any model type that transformers knows, each with a tokenizer.

Sizes are set by the names that configurations give them, so that one table serves hundreds of
types; what no name tells stands in `PARTICULAR`.
"""

import inspect
import math
import random
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

KINDS = {  # the class that loads such models, and transformers' table of their types
    "causal": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
    "classification": ("AutoModelForSequenceClassification", "SEQUENCE_CLASSIFICATION"),
    "masked": ("AutoModelForMaskedLM", "MASKED_LM"),
}
MOST_PARAMETERS = 16_000_000
HEADS, VOCABULARY = 4, 320
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 3}
# the largest value of a size, and the names that configurations give to such sizes
SIZES: tuple[tuple[int, str], ...] = (
    (VOCABULARY, "vocab_size *_vocab_size vocab_size_* num_tokens"),
    (
        64,
        "hidden_size d_model n_embd n_embed hidden_dim emb_dim attention_hidden_size lru_width dim "
        "*_hidden_dim *_hidden_size embedding_size word_embed_proj_dim input_embedding_size "
        "rank_dim projection_dim output_embedding_size embedding_dim dim_model block_dim "
        "hidden_size_for_* output_dim output_proj_dims *_output_dim speech_*_dim",
    ),
    (
        96,
        "intermediate_size ffn_dim d_ff n_inner *_ffn_dim dff dim_ff feed_forward_size inner_dim "
        "ffn_hidden_size mlp_hidden_size shared_intermediate_size block_ff_dim hidden_ff "
        "dense_intermediate_size intermediate_size_mlp intermediate_sizes",
    ),
    (
        32,
        "moe_intermediate_size expert_ffn_hidden_size *shared_expert_intermediate_size "
        "expert_intermediate_size moe_ffn_hidden_size moe_latent_size moe_expert_ffn_dim "
        "share_expert_dim *lora_rank lora_*_rank *low_rank_dim adapter_*size *bottleneck_size "
        "t2u_*_dim *_bottleneck_dim index_topk index_top_k image_size img_size",
    ),
    (
        2,
        "num_hidden_layers n_layer n_layers num_layers *encoder_layers *decoder_layers num_blocks "
        "depth n_blocks encoder_n_layers num_block_layers num_*coder_layers "
        "num_key_value_heads num_kv_heads n_kv_heads multi_query_group_num "
        "swa_num_key_value_heads num_global_key_value_heads attention_num_kv_heads "
        "num_experts_per_tok moe_topk moe_k num_experts_per_token moe_top_k top_k_experts "
        "num_selected_experts moe_router_topk router_top_k experts_per_token num_experts_per_topk "
        "linear_num_key_heads linear_num_heads attn_layer_period expert_layer_period "
        "full_attention_interval sliding_window_pattern attn_layer_interval "
        "interleave_moe_layer_step layer_group_size cross_attention_interval num_codebooks "
        "num_quantizers n_codes num_hash_* n_hash* zero_expert_num",
    ),
    (
        HEADS,
        "num_attention_heads n_head n_heads num_heads *_attention_heads num_query_heads "
        "swa_num_attention_heads linear_attn_num_heads index_n_heads num_heads_* attention_heads "
        "num_experts n_routed_experts num_local_experts moe_num_experts num_moe_experts n_experts "
        "routed_experts num_sparse_experts expert_num moe_num_routed_experts num_routed_experts "
        "linear_num_value_heads *dt_rank time_step_rank num_conv_pos_embedding_groups",
    ),
    (
        16,
        "head_dim kv_channels d_kv *_head_dim attention_head_size dim_head d_head head_size "
        "*chunk_size chunk_length laurel_rank hidden_size_per_layer_input per_layer_embed_dim "
        "rotary_dim rope_dim audio_channel input_feat_size num_mel_bins feature_size mamba_headdim "
        "mamba_d_head num_conv_pos_embeddings",
    ),
    (8, "qk_rope_head_dim rope_head_dim *state_size *d_state mamba_*heads patch_size num_buckets"),
    (24, "qk_head_dim"),
    (
        1,
        "n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group "
        "num_expert_group moe_n_group n_expert_groups n_limited_groups first_k_dense_replace "
        "moe_layer_start_index num_dense_layers n_dense_first_layers first_num_dense_layers "
        "num_first_dense_layers mamba_n_groups mamba_ngroups n_groups attn_layer_offset "
        "expert_layer_offset",
    ),
    (0, "num_kv_shared_layers num_nextn_predict_layers num_mtp_* mtp_num_*"),
    (
        256,
        "*max_position_embeddings n_positions n_ctx max_sequence_length max_*_positions "
        "max_seq_len max_seq_length seq_length context_length max_*_position_embeddings "
        "max_positions max_sequence_len",
    ),
    (64, "sliding_window *window_size attention_chunk_size expert_capacity sliding_window_size"),
    (128, "mamba_d_ssm"),
    (20, "entity_*size"),
)
FIRST = ("qk_rope_head_dim", "rope_head_dim", "qk_head_dim", "mamba_num_heads", "n_mamba_heads")
START_IS_PAD = [
    "t5",
    "mt5",
    "umt5",
    "longt5",
    "switch_transformers",
    "pegasus_x",
    "blenderbot",
    "blenderbot-small",
    "m2m_100",
    "nllb-moe",
]
START_IS_END = [
    "bart",
    "mbart",
    "mvp",
    "plbart",
    "bigbird_pegasus",
    "marian",
    "pegasus",
    "fsmt",
    "prophetnet",
    "led",
]
ROPE_OF_LAYER = {"rope_type": "default", "rope_theta": 10000.0}
ROPE = {"sliding_attention": ROPE_OF_LAYER}
QWEN4 = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
    "hc_lowrank": 16,
    "ngram_vocab_size_base": VOCABULARY,
    "split_ngram_parts": 1,
}
# what a type needs besides
PARTICULAR: dict[str, dict[str, Any]] = {
    **{name: {"decoder_start_token_id": 0} for name in START_IS_PAD},
    **{name: {"decoder_start_token_id": 2} for name in START_IS_END},
    "led": {"decoder_start_token_id": 2, "attention_window": [16, 16]},
    # by default every fourth layer has experts
    "nllb-moe": {"decoder_start_token_id": 0, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "longcat_flash": {"head_dim": 8, "num_key_value_heads": HEADS},
    "recurrent_gemma": {"num_hidden_layers": 3, "block_types": ["recurrent", "attention"]},
    # these have no default, or one that does not go with a small model
    "cohere_compass_text": {"rope_parameters": {**ROPE, "full_attention": ROPE_OF_LAYER}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "encoder-decoder": {"decoder_start_token_id": 1},
    "dory": {"n_input_layers": 1, "n_output_layers": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 24},
    "esm": {"vocab_size": VOCABULARY, "mask_token_id": 4},
    "esmc": {"num_key_value_heads": HEADS, "vocab_size": VOCABULARY},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "nemotron3_diarization": {"chunk_right_context": 4},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "qwen4_exp": QWEN4,
    "qwen4_exp_text": QWEN4,
    "vibevoice_asr": {"acoustic_tokenizer_chunk_size": 3200},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "bamba": {"attn_layer_indices": [1]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {
            "ffn_hidden_size": 32,
            "hidden_size": 64,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "reformer": {
        "is_decoder": True,
        "axial_pos_shape": [16, 16],
        "axial_pos_embds_dim": [32, 32],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
        "num_buckets": 4,
        "num_hashes": 1,
    },
    "funnel": {"d_inner": 96, "block_sizes": [1, 1], "d_head": 16, "n_head": 4},
    "perceiver": {
        "vocab_size": VOCABULARY,
        "d_latents": 64,
        "num_latents": 8,
        "num_blocks": 1,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
    },
    "lilt": {"hidden_size": 96, "channel_shrink_ratio": 4},
    "xlstm": {"qk_dim_factor": 1.0, "v_dim_factor": 1.0},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "hybrid_layer_ids": [1, 3],
        "num_hidden_layers": 4,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "attention_head_dim": 32,
        "attention_hidden_size": 128,
        "num_key_value_heads": 4,
        "num_query_groups": 4,
        "adapter_rank": 8,
    },
    "blt": {
        "encoder_hash_byte_group_vocab": 200,
        "encoder_hash_byte_group_nb_functions": 1,
        "encoder_hash_byte_group_size": [3, 4],
    },
}
TEXT = (
    "count one two three four five birds stars river stone the a of is red green blue and then "
    "small large"
)
WORDS = TEXT.split()


def types_of(kind: str) -> list[str]:
    """Return the model types of a kind that the installed transformers knows."""
    return list(getattr(modeling_auto, f"MODEL_FOR_{KINDS[kind][1]}_MAPPING_NAMES"))


def largest(name: str) -> int | None:
    """Return the largest value that a size of this name may have; None: it is no size."""
    if name in FIRST:
        return 24 if name == "qk_head_dim" else 8
    for value, patterns in SIZES:
        if any(fnmatchcase(name, pattern) for pattern in patterns.split()):
            return value
    return None


def settings_of(kind: type, depth: int = 0) -> dict[str, Any]:
    """Return what makes a configuration of a class small."""
    try:
        default = kind()
    except Exception:  # it wants arguments: the class' own values must do
        default = kind
    made: dict[str, Any] = {}
    extra = VOCABULARY - 20
    for name, declared in fields_of(kind).items():
        value = value_of(default, name, declared)
        if name in TOKENS:
            made[name] = TOKENS[name]
        elif name == "mask_token_id":
            made[name] = 4
        elif name == "decoder_start_token_id":
            made[name] = 0 if value in (0, None) else 2
        elif name.startswith("forced_") and name.endswith("_token_id"):
            made[name] = None
        elif is_token(name) and isinstance(value, int):
            made[name], extra = extra, extra + 1
        elif (small := largest(name)) is not None and name != "type_vocab_size":
            if is_number(value) and value > small:
                made[name] = small
            elif isinstance(value, list | tuple) and value and all(map(is_number, value)):
                made[name] = value if "layer" in name else [min(one, small) for one in value][:2]
    made |= inner_settings(kind, default, depth)
    particular = PARTICULAR.get(getattr(kind, "model_type", ""), {})
    if "layers_block_type" not in particular:
        made |= layer_settings(kind, default)
    if "kv_lora_rank" in made and "num_key_value_heads" in made:
        # latent attention has a key for each head
        made["num_key_value_heads"] = made.get("num_attention_heads", HEADS)
    return made | particular


def fields_of(kind: type) -> dict[str, Any]:
    """Return the settings of a configuration class with their defaults."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("transformers.configuration_utils") or base is object:
            continue
        for name in getattr(base, "__annotations__", {}):
            if not name.startswith("_"):
                found[name] = getattr(kind, name, None)
    if found:
        return found
    signature = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return {one.name: one.default for one in signature if one.name not in ("self", "kwargs")}


def value_of(default: Any, name: str, declared: Any) -> Any:
    """Return a setting's default, or what the class declares where it can't be read."""
    try:
        return getattr(default, name, declared)
    except Exception:  # a value that differs from layer to layer
        return declared


def is_number(value: Any) -> bool:
    """Return whether a setting is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_token(name: str) -> bool:
    """Return whether a setting is a token's number."""
    return name.endswith(("_token_id", "_token_index", "_token_idx"))


def inner_settings(kind: type, default: Any, depth: int) -> dict[str, Any]:
    """Return small settings for the configurations inside one: of a text model, a vision tower."""
    made = {}
    for name, declared in (getattr(kind, "sub_configs", None) or {}).items():
        inner = value_of(default, name, None)
        cls = type(inner) if hasattr(inner, "model_type") else declared
        if cls.__name__ != "AutoConfig" and depth < 4:
            made[name] = {"model_type": cls.model_type, **settings_of(cls, depth + 1)}
    return made


def layer_settings(kind: type, default: Any) -> dict[str, Any]:
    """Return settings that give a model one layer of each type it has."""
    types = value_of(default, "layer_types", None)
    if not isinstance(types, list | tuple) or len(set(types)) < 2:
        return {}
    alias = (getattr(kind, "attribute_map", None) or {}).get("layer_types", "layer_types")
    if isinstance(getattr(kind, alias, None), property):
        return {}  # it follows from other settings
    each = list(dict.fromkeys(types))
    names = fields_of(kind)
    made: dict[str, Any] = {"layer_types": each}
    counts = [n for n in ("num_hidden_layers", "num_layers", "n_layer") if n in names]
    made |= {name: len(each) for name in counts[:1]}
    others = value_of(default, "mlp_layer_types", None)
    if "mlp_layer_types" in names and isinstance(others, list | tuple):
        distinct = list(dict.fromkeys(others))
        made["mlp_layer_types"] = (distinct * len(each))[: len(each)]
    return made


def tokenizer_of(kind: str) -> Any:
    """Return a byte-level tokenizer with the special tokens around a text that a kind has."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=12)) for _ in range(300)]
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    form = {"causal": "<s> $A", "seq2seq": "$A </s>"}.get(kind, "<s> $A </s>")
    used = [(token, made.token_to_id(token)) for token in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(single=form, special_tokens=used)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def stir(model: torch.nn.Module) -> None:
    """Give a model random weights that matter: its logits depend on all of its parts."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                is_sound = bool(torch.isfinite(parameter).all())
                parameter.copy_((parameter if is_sound else 0.0) + 0.05 * noise)
                continue
            spread = float(parameter.float().std()) if parameter.numel() > 1 else 0.0
            if not math.isfinite(spread) or spread < 0.06:
                parameter.copy_(0.12 * noise)


def configuration_of(kind: str, model_type: str) -> Any:
    """Return a small configuration of a model type."""
    config = CONFIG_MAPPING[model_type](**settings_of(CONFIG_MAPPING[model_type]))
    if kind != "causal" and model_type == "reformer":
        config.is_decoder = False
    if kind == "classification":
        config.num_labels = 2
        config.id2label, config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    return config


def build(kind: str, model_type: str, folder: Path) -> None:
    """Write a tiny random checkpoint of a model type with a tokenizer.

    Raises:
        ValueError: the model would be large.
        Exception: whatever transformers raises for a type that this can't make small.
    """
    auto = getattr(transformers, KINDS[kind][0])
    config = configuration_of(kind, model_type)
    try:
        with torch.device("meta"):
            outline = auto.from_config(config)
    except (NotImplementedError, RuntimeError):
        outline = None  # its making reads values
    count = 0 if outline is None else sum(p.numel() for p in outline.parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count:,} parameters: no name says how to make it smaller")
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    stir(model)
    if model.can_generate():
        settings: Mapping[str, Any] = {name: TOKENS[name] for name in list(TOKENS)[:3]}
        for name, value in settings.items():
            setattr(model.generation_config, name, value)
        model.generation_config.forced_bos_token_id = None
        model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)
    tokenizer_of(kind).save_pretrained(folder)
