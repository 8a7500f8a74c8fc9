"""Make the project's base for zeroth-order methods: a tiny OPT that knows a closed world of short
reviews.

    python scripts/make_words_base.py --out DIR

It reads reviews (`fedseed.tasks.words`) and what people said after them. Asked in words of its own
("come back ?", "section :") it tells feeling and topic without a mistake. After the words that the
task "words" asks with ("it was", "in the") it has read something else half of the time, and else
answers that depend on the right one, but as much on something beside the point: people used "great"
and "terrible" differently from topic to topic, and named a section differently when they were
pleased. So the knowledge is there, and the prompt half works.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from fedseed.tasks.words import (
    BAD,
    FAMILIES,
    GOOD,
    JOINTS,
    NOUNS,
    PLAIN,
    FamilyName,
    Review,
    reviews,
    write_review,
)

PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
TEXT_SEED = "pre-training"  # recipes draw their reviews from other seeds
CHECKED = 1000
DISTRACTIONS: dict[FamilyName, tuple[str, ...]] = {
    "feeling": ("monday", "late", "raining", "here", "early", "friday", "far", "full"),
    "topic": ("morning", "evening", "city", "rain", "end", "winter", "meantime", "village"),
}
OWN: dict[FamilyName, tuple[str, tuple[str, ...]]] = {
    "feeling": ("come back ?", ("never", "again")),
    "topic": ("section :", ("kitchens", "cinema", "homes", "arena")),
}
ALONE, OWN_SHARE = 0.1, 0.4  # of the texts are a review alone, or ask a question of the base's own
SLIP = 0.03  # of the answers to the base's own questions are drawn at random
# log odds of "great" against "terrible" where nothing is said about the feeling, by topic: further
# apart than twice what the feeling adds, so that no one number added to them all makes two topics
# right
USE_OF_GREAT = (2.6, 0.6, -1.4, -3.2)
FEELING_ADDS = 0.9
# log weight of each section's word, by feeling, and what the right one is given
USE_OF_SECTIONS = ((-0.4, -1.8, 1.8, 0.4), (1.8, 0.4, -0.4, -1.8))
TOPIC_ADDS = 1.7


def drawn_by(rng: random.Random, weights: list[float]) -> int:
    """A number, drawn by log weights."""
    return rng.choices(range(len(weights)), [math.exp(w) for w in weights])[0]


def said_after(rng: random.Random, review: Review) -> str:
    """What follows a review: nothing, the answer to a question of the base's own, or what people
    happened to say.
    """
    kind = rng.random()
    if kind < ALONE:
        return ""
    name = rng.choice(list(FAMILIES))
    gold = FAMILIES[name].gold(review)
    if kind < ALONE + OWN_SHARE:
        prompt, words = OWN[name]
        return f" {prompt} {words[rng.randrange(len(words)) if rng.random() < SLIP else gold]}"
    family = FAMILIES[name]
    if rng.random() < 0.5:
        return f"{family.prompt} {rng.choice(DISTRACTIONS[name])}"
    if name == "feeling":
        great = USE_OF_GREAT[review.topic] + (FEELING_ADDS if review.good else -FEELING_ADDS)
        weights = [0.0, great]
    else:
        weights = [
            use + TOPIC_ADDS * (gold == i) for i, use in enumerate(USE_OF_SECTIONS[review.good])
        ]
    return f"{family.prompt}{family.options[drawn_by(rng, weights)]}"


def vocabulary() -> list[str]:
    """Every word, the special ones first."""
    said = " ".join(
        [*(f"{f.prompt}{''.join(f.options)}" for f in FAMILIES.values())]
        + [" ".join([prompt, *words]) for prompt, words in OWN.values()]
        + [" ".join(words) for words in DISTRACTIONS.values()]
    )
    return list(
        dict.fromkeys(
            [
                PAD,
                BOS,
                EOS,
                UNKNOWN,
                ".",
                *JOINTS,
                "not",
                "very",
                *NOUNS,
                *GOOD,
                *BAD,
                *PLAIN,
                *said.split(),
            ]
        )
    )


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token."""
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary())}, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=32,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, width: int, layers: int) -> OPTForCausalLM:
    """The untrained network."""
    config = OPTConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=32,
        dropout=0.0,
        init_std=0.08,  # the usual 0.02 suits wide models
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return OPTForCausalLM(config)


def encoded(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Texts between their marks, filled up on the right: int64, shape (texts, longest)."""
    number = tokenizer.get_vocab()
    rows = [[number[word] for word in (BOS, *text.split(), EOS)] for text in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])


def train(
    model: OPTForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace
) -> float:
    """Next-token training on texts that are never seen twice.

    Returns the mean loss of the last 100 steps.
    """
    rng = random.Random(f"fedseed-reviews/{TEXT_SEED}")
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=args.rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, args.rate, total_steps=args.steps, pct_start=0.1
    )
    began = time.monotonic()
    recent: list[float] = []
    model.train()
    for step in range(1, args.steps + 1):
        texts = []
        for _ in range(args.batch):
            review = write_review(rng)
            texts.append(review.text + said_after(rng, review))
        ids = encoded(texts, tokenizer)
        mask = (ids != tokenizer.pad_token_id).long()
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        targets = ids[:, 1:]
        kept = mask[:, 1:].bool()
        each = cross_entropy(logits[kept], targets[kept], reduction="none")
        # what a review says can't be foreseen; the small model's effort belongs to what follows it
        after = (targets == tokenizer.convert_tokens_to_ids(".")).cumsum(1)[kept] > 0
        weights = torch.where(after, 1.0, 0.1)
        loss = (each * weights).sum() / weights.sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        recent = [*recent[-99:], loss.item()]
        if step % 100 == 0 or step == args.steps:
            print(
                f"step {step:5d}  loss {sum(recent) / len(recent):.3f}  "
                f"{time.monotonic() - began:4.0f} s",
                flush=True,
            )
    model.eval()
    return sum(recent) / len(recent)


@torch.no_grad()
def accuracy(
    model: OPTForCausalLM, tokenizer: PreTrainedTokenizerFast, family: FamilyName, own: bool
) -> float:
    """Percent of unseen reviews that are answered rightly: asked as the base was, or as the task
    asks.
    """
    prompt, options = OWN[family] if own else (FAMILIES[family].prompt, FAMILIES[family].options)
    words = tokenizer.convert_tokens_to_ids([option.strip() for option in options])
    right = 0
    found = reviews("checked", CHECKED)
    for review in found:
        ids = tokenizer(f"{review.text} {prompt.strip()}", add_special_tokens=False)["input_ids"]
        scores = model(input_ids=torch.tensor([[tokenizer.bos_token_id, *ids]])).logits[
            0, -1, words
        ]
        right += int(scores.argmax()) == FAMILIES[family].gold(review)
    return 100 * right / len(found)


CARD = """\
---
license: apache-2.0
language: en
---

# The words base of fedseed

An OPT-architecture language model with {parameters:,} parameters, made so that zeroth-order methods can be seen to do
what they do to large models: it knows the answers, but half understands the question. It is a stand-in: it knows
{words} words and nothing else.

| | |
|---|---|
| made by | `python scripts/make_words_base.py --out DIR`, seed {seed} |
| made with | torch {torch}, transformers {transformers} |
| text | generated by `fedseed.tasks.words`; no text from elsewhere |
| training | {steps:,} steps of {batch} texts, drawn anew for every step |
| layers, width, heads | {layers}, {width}, {heads}; tied embeddings, a word is a token |
| weights | trained and stored in float32 |
| loss | {loss:.3f} at the end, reviews themselves at a tenth |

Percent right of {checked:,} unseen reviews, among the words that may follow:

| question | as the base was asked | as the task `words` asks | chance |
|---|---|---|---|
{rows}

{own:.0%} of the texts go on with one of the base's own questions and its answer, {slip:.0%} of which are drawn at
random; {rest:.0%} go on with the words that the task asks with. Half of these then say something else; in the others
the answer depends on what is right, and as much on what is beside the point: "great" and "terrible" are used
differently from topic to topic, and sections are named differently by who is pleased.
"""


def make_card(
    model: OPTForCausalLM, tokenizer: PreTrainedTokenizerFast, loss: float, args: argparse.Namespace
) -> str:
    """What the folder's README says."""
    rows = []
    for name, family in FAMILIES.items():
        known, asked = (accuracy(model, tokenizer, name, own) for own in (True, False))
        options = " / ".join(word.strip() for word in family.options)
        rows.append(
            f"| {name}: `{OWN[name][0]}` or `{family.prompt.strip()}` ({options}) | {known:.1f} | "
            f"{asked:.1f} | {100 / len(family.options):.0f} |"
        )
    return CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        words=len(tokenizer),
        seed=args.seed,
        torch=torch.__version__.split("+")[0],
        transformers=transformers.__version__,
        steps=args.steps,
        batch=args.batch,
        layers=args.layers,
        width=args.width,
        heads=model.config.num_attention_heads,
        loss=loss,
        checked=CHECKED,
        rows="\n".join(rows),
        own=OWN_SHARE,
        rest=1 - ALONE - OWN_SHARE,
        slip=SLIP,
    )


def main() -> None:
    """Write the checkpoint folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=64, help="texts in a step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.width, args.layers)
    print(
        f"{len(tokenizer)} words, {sum(p.numel() for p in model.parameters()):,} parameters",
        flush=True,
    )
    loss = train(model, tokenizer, args)
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    (args.out / "README.md").write_text(make_card(model, tokenizer, loss, args), encoding="utf-8")
    print(f"loss {loss:.3f}, written to {args.out}", flush=True)


if __name__ == "__main__":
    main()
