"""Tiny bases that have learnt one conversation with a tool call by heart, in the manners of three
families.

The templates are our own, short ones. What matters of each family is in them: how the functions are
told, how a call is written, and how its result comes back. Qwen's may think, or not.
"""

import torch

from support.text_bases import save

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}},
            "required": ["town"],
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Köln?"}]
ARGUMENTS = {"town": "Köln"}
RESULT = "sunny, 21 degrees"
ANSWER = "It is sunny in Köln."
GREETING = [{"role": "user", "content": "Hello!"}]
GREETED = "Hello, how are you?"
THOUGHT = "<think>A greeting.</think>"

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {{- 'Call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>:' }}
    {%- for tool in tools %}{{- '\n' + tool | tojson }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\n' }}
        {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
        {{- '\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """{{- bos_token }}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}
                {{- raise_exception('ids of tool calls have nine characters') }}
            {%- endif %}
            {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
            {{- ']' + eos_token if loop.last else ', ' }}
        {%- endfor %}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

LLAMA = """{{- bos_token }}
{%- if tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
    {{- 'Call as {"name": function name, "parameters": {...}}:' }}
    {%- for tool in tools %}{{- '\n' + tool | tojson }}{% endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
    {%- if message.tool_calls %}
        {%- set function = message.tool_calls[0].function %}
        {{- '{"name": "' + function.name + '", "parameters": ' }}
        {{- function.arguments | tojson + '}' }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

TEMPLATES = {"qwen": QWEN, "mistral": MISTRAL, "llama": LLAMA}
# the first is the end of a turn; the others stand before a text, or around its parts
SPECIAL = {
    "qwen": ["<|im_end|>", "<|endoftext|>", "<|im_start|>"],
    "mistral": [
        "</s>",
        "<s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ],
    "llama": [
        "<|eot_id|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|python_tag|>",
    ],
}
# tokens of their own that are no special ones, as Qwen has them
ADDED = {"qwen": ["<tool_call>", "</tool_call>", "<think>", "</think>"]}


def call(identity="abcdefghi", arguments=ARGUMENTS):
    """An assistant's message with a call, as chat templates take it."""
    function = {"name": "weather", "arguments": arguments}
    calls = [{"id": identity, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(identity="abcdefghi"):
    """The message with what the called function returns."""
    return {"role": "tool", "tool_call_id": identity, "content": RESULT}


def tool_tokenizer(family):
    """A tokenizer of bytes and frequent parts of words, with a family's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AddedToken, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL[family],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(["name arguments function weather Hello how are you"], trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED.get(family, ())])
    end, begin, *others = SPECIAL[family]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        pad_token=end,
        additional_special_tokens=others,
    )
    fast.chat_template = TEMPLATES[family]
    return fast


def tool_base(folder, family):
    """Write a tiny base that has learnt a tool call, what follows it, and a greeting."""
    from transformers import AutoModelForCausalLM

    tokenizer = tool_tokenizer(family)
    ends = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos")}
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 640,
    }
    torch.manual_seed(0)
    save(folder, tokenizer, "llama", "AutoModelForCausalLM", {**sizes, **ends})
    model = AutoModelForCausalLM.from_pretrained(folder)
    _learn(model, [_tokens(tokenizer, *one) for one in _conversations(tokenizer, family)])
    model.save_pretrained(folder)
    return folder


def _conversations(tokenizer, family):
    """The prompts of conversations, and what is to follow each."""

    def prompt(turns, tools=None, **options):
        return tokenizer.apply_chat_template(
            turns, tools=tools, tokenize=False, add_generation_prompt=True, **options
        )

    def following(turns, turn):
        whole = tokenizer.apply_chat_template([*turns, turn], tools=[WEATHER], tokenize=False)
        end = tokenizer.eos_token
        return whole[len(prompt(turns, [WEATHER])) :].removesuffix("\n").removesuffix(end)

    after_call = [*QUESTION, call(), result()]
    answer = {"role": "assistant", "content": ANSWER}
    thinks = family == "qwen"
    yield prompt(QUESTION, [WEATHER]), following(QUESTION, call())
    yield prompt(after_call, [WEATHER]), following(after_call, answer)
    yield prompt(GREETING), f"{THOUGHT}{GREETED}" if thinks else GREETED
    if thinks:
        yield prompt(GREETING, enable_thinking=False), GREETED


def _tokens(tokenizer, prompt, answer):
    """Tokens of a prompt with its answer, and how many the prompt has."""
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    after = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return torch.tensor([before + after]), len(before)


def _learn(model, conversations, most=400):
    """Train until each answer is what the model takes for likeliest, token by token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(most):
        losses, sure = [], []
        for ids, start in conversations:
            labels = ids.clone()
            labels[:, :start] = -100
            made = model(ids, labels=labels)
            losses.append(made.loss)
            chances = made.logits[0, start - 1 : -1].softmax(-1)
            sure.append(chances.gather(1, ids[0, start:, None]).min().item())
        if min(sure) > 0.95:
            return
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    raise AssertionError(f"the base has not learnt its answers: {sure}")
