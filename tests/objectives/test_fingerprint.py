"""Fingerprints of tokens and templates: equal where texts become the same, different where not, and
said with versions.
"""

import asyncio
import copy
import json
from importlib.metadata import version

import pytest

from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.client.data_note import check_fingerprint
from fedseed.federation.control import Beginning, Hello, parse_control
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.protocol import Entry, header_entry, read_header
from fedseed.objectives.fingerprint import template_digest, tokens_digest, versions_here
from fedseed.orbit.file import begin
from fedseed.runs.model_setup import fingerprint_of
from support.chat_bases import TEMPLATES, chat_tokenizer
from support.reception import Talk

OLD = {"fedseed": "0.9", "transformers": "4.56.2", "tokenizers": "0.22.0"}
MINE = Fingerprint("ab" * 16, "cd" * 16, {**OLD, "transformers": "5.24.0"})
OTHER = Fingerprint("ef" * 16, "cd" * 16, OLD)
SAME = Fingerprint("ab" * 16, "cd" * 16, OLD)


def changed(tokenizer, **parts):
    """The same tokenizer with other parts of its file."""
    from tokenizers import Tokenizer

    made = copy.deepcopy(tokenizer)
    said = {**json.loads(made.backend_tokenizer.to_str()), **parts}
    made._tokenizer = Tokenizer.from_str(json.dumps(said))
    return made


def test_what_changes_tokens_changes_the_fingerprint():
    tokenizer = chat_tokenizer("qwen2")
    whole = tokens_digest(tokenizer)
    assert (
        whole == tokens_digest(chat_tokenizer("qwen2")) == tokens_digest(copy.deepcopy(tokenizer))
    )
    lower = {"type": "Lowercase"}
    composed = {"type": "NFC"}
    start = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    others = [
        tokens_digest(changed(tokenizer, normalizer=lower)),
        tokens_digest(changed(tokenizer, normalizer=composed)),
        tokens_digest(changed(tokenizer, post_processor=start)),
        tokens_digest(changed(tokenizer, pre_tokenizer=byte_level)),
        tokens_digest(chat_tokenizer("gemma")),
    ]
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    vocabulary = dict(model["vocab"])
    rare = [token for token in vocabulary if len(token) > 1][-2:]  # no fixed text has them
    vocabulary[rare[0]], vocabulary[rare[1]] = vocabulary[rare[1]], vocabulary[rare[0]]
    others.append(tokens_digest(changed(tokenizer, model={**model, "vocab": vocabulary})))
    tokenizer.add_tokens(["1,234"])
    others.append(tokens_digest(tokenizer))
    assert len({whole, *others}) == 1 + len(others)


def test_what_a_template_writes_is_compared():
    found = [template_digest(chat_tokenizer("qwen2", text)) for text in TEMPLATES.values()]
    assert len(set(found)) == 3
    spaced = TEMPLATES["qwen2"].replace("tojson", "tojson(indent=1)")
    assert template_digest(chat_tokenizer("qwen2", spaced)) not in found
    branches = (
        "{% if enable_thinking is defined and not enable_thinking %}T{% endif %}",
        "{% if messages | length > 6 %}T{% endif %}",
        "{% if messages[1] and messages[1].reasoning_content %}T{% endif %}",
        "{% if messages[1] and (messages[1].tool_calls or []) | length > 1 %}T{% endif %}",
        "{% if messages[3] and messages[3].role == 'system' %}T{% endif %}",
    )
    others = [
        template_digest(chat_tokenizer("qwen2", TEMPLATES["qwen2"] + branch)) for branch in branches
    ]
    assert len({*found, *others}) == 3 + len(branches)
    # what differs in the text alone writes the same; a date is always the same one
    commented = "{# a comment #}" + TEMPLATES["qwen2"]
    assert template_digest(chat_tokenizer("qwen2", commented)) == found[1]
    dated = chat_tokenizer("qwen2", "{{ strftime_now('%d %b') }}" + TEMPLATES["qwen2"])
    assert template_digest(dated) == template_digest(dated)
    refusing = chat_tokenizer("qwen2", "{{ raise_exception('no') }}")
    assert template_digest(refusing) == template_digest(
        chat_tokenizer("qwen2", "{{ raise_exception('never') }}")
    )
    tokenizer = chat_tokenizer("qwen2")
    tokenizer.chat_template = None
    assert template_digest(tokenizer) == ""


def test_a_fingerprint_of_this_machine():
    made = fingerprint_of(chat_tokenizer("llama"))
    assert made.versions["transformers"] == version("transformers")
    assert versions_here().items() <= made.versions.items()
    assert Fingerprint.from_json(made.to_json()) == made
    assert fingerprint_of(None) is None and fingerprint_of(object()) is None


def test_differences_name_both_sides():
    assert MINE == SAME and MINE.difference_from(SAME) is None
    assert (
        MINE.version_difference(SAME) == "transformers 5.24.0, but the run has transformers 4.56.2"
    )
    said = OTHER.difference_from(MINE)
    assert said.startswith("the same texts have different tokens: fedseed 0.9, transformers 4.56.2")
    assert "at this party, fedseed 0.9, transformers 5.24.0" in said and "same versions" in said
    template = Fingerprint(MINE.tokens, "00" * 16, OLD)
    assert template.difference_from(MINE).startswith("the chat template writes the same chat diff")


def hellos(*said, ends=False, **settings):
    """What processes are told that come one after the other, and the reception.

    With `ends` the reception's failure is waited for.
    """

    async def talk():
        one = await Talk(names=("a", "b", "c"), **settings).start()
        waiting = asyncio.create_task(one.reception.assemble())
        answers = []
        for name, fingerprint in zip("abc", said, strict=False):
            more = {} if fingerprint is None else {"fingerprint": fingerprint.to_json()}
            answers.append(await one.hello([name], **more))
            for _ in range(20):
                await asyncio.sleep(0)
        if ends:
            await asyncio.wait([waiting], timeout=60)
        failure = waiting.exception() if waiting.done() else None
        waiting.cancel()
        return one, answers, failure

    return asyncio.run(talk())


def test_what_most_clients_make_of_texts_is_the_runs():
    one, _, _ = hellos(OTHER, MINE, SAME)
    assert one.reception.fingerprint == MINE
    assert one.roster.outvoted == {"a"} and "b" not in one.roster.outvoted
    (reasons,) = (reasons for name, reasons in one.rejected.counts().items() if name == "a")
    assert "the same texts have different tokens" in next(iter(reasons))
    assert "transformers 4.56.2" in next(iter(reasons)) and "5.24.0" in next(iter(reasons))


def test_once_it_is_known_others_are_refused():
    one, answers, _ = hellos(MINE, SAME, OTHER)
    assert one.reception.fingerprint == MINE and "refused" not in answers[1]
    assert answers[2]["refused"].startswith("the same texts have different tokens: fedseed 0.9")


def test_without_a_majority_the_run_does_not_begin():
    third = Fingerprint("12" * 16, "cd" * 16, OLD)
    _, _, failure = hellos(MINE, OTHER, third, ends=True)
    assert isinstance(failure, RecipeError)
    assert f"tokens {OTHER.tokens} (fedseed 0.9, transformers 4.56.2" in str(failure)


def test_who_says_nothing_is_not_refused():
    one, answers, _ = hellos(None, None, None)
    assert one.reception.fingerprint is None and not any("refused" in told for told in answers)


class Has:
    """What a process has, as far as it is asked here."""

    def __init__(self, fingerprint):
        self.fingerprint = fingerprint


def test_a_client_compares_itself_with_the_log():
    header = Talk().header
    plain = Beginning(epoch="e", names=["a"], rounds=1)
    said = Beginning(epoch="e", names=["a"], rounds=1, fingerprint=MINE.to_json())
    # a log of a run without tokenizers has the bytes that it always had
    text = b'{"epoch": "e", "names": ["a"], "rounds": 1}'
    assert plain.encode() == text
    about, _, _ = read_header(Entry.decode(header_entry(said, begin(header)).encode()))
    check_fingerprint(Has(SAME), about.fingerprint)
    check_fingerprint(Has(None), about.fingerprint)
    check_fingerprint(Has(OTHER), parse_control(Beginning, text).fingerprint)
    with pytest.raises(FedseedError, match="the same texts have different tokens"):
        check_fingerprint(Has(OTHER), about.fingerprint)


def test_a_hello_may_say_only_so_much():
    about = {"host": "a", "header": "", "names": ["a"], "at": 0}
    assert b"fingerprint" not in Hello(**about).encode()
    for said in ({"tokens": "x" * 101}, {f"n{i}": "" for i in range(11)}, {"n" * 41: ""}, {"a": 1}):
        with pytest.raises(FedseedError, match="fingerprint"):
            parse_control(Hello, json.dumps({**about, "fingerprint": said}).encode())
