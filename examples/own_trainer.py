"""A Trainer as a client of a federation: python own_trainer.py NAME [NATS].

Its recipe lies beside it.
"""

import sys
from pathlib import Path

from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import fedseed
from fedseed.models.loading import load_model  # or AutoModelForCausalLM and AutoTokenizer, as ever

name, server = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
model, tokenizer = load_model("small")
rows = []
for number in range(2, 10):
    ids = tokenizer(f"Count: {number} times one {name} is {number} {name}s")["input_ids"]
    rows.append({"input_ids": ids, "labels": ids})
trainer = Trainer(
    model=model,
    args=TrainingArguments("trainer", report_to=[]),
    train_dataset=rows,
    eval_dataset=rows[:2],
    data_collator=DataCollatorForSeq2Seq(tokenizer),
)
fedseed.patch(trainer, Path(__file__).with_suffix(".toml"), name, server)
# the same for all; trainer.model is the tuned model now
print(trainer.train().metrics["weights_digest"])
print(f"loss {trainer.evaluate()['eval_loss']:.2f}")
