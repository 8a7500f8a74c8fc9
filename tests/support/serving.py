"""A server of models in a process of its own, tuned models for it, and their exports in plain
transformers to compare with.
"""

import os
import subprocess
import sys
from contextlib import contextmanager

import openai
from transformers import AutoModelForCausalLM, AutoTokenizer

import fedseed
from fedseed import Orbit, ZOOptimizer
from fedseed.models.loading import load_model
from fedseed.orbit.card import Facts
from fedseed.orbit.export import export_model


def tuned(base, folder, seed, texts, rate=3e-3, steps=4):
    """Writes a run's folder with an orbit that has moved the base far enough to answer
    otherwise.
    """
    model, tokenizer = load_model(base)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    folder.mkdir()
    method = fedseed.FeedSign(learning_rate=rate)
    with ZOOptimizer(
        model, method, seed=seed, base=base, orbit=folder / "model.orbit"
    ) as optimizer:
        for _ in range(steps):
            optimizer.step(lambda: model(**batch, labels=batch["input_ids"]).loss)
    return folder


class Plain:
    """An exported folder in plain transformers."""

    def __init__(self, base, run, folder):
        model, tokenizer = load_model(base)
        orbit = Orbit.open(run / "model.orbit")
        template = run / "chat_template.jinja"
        tokenizer.chat_template = (
            template.read_text() if template.exists() else tokenizer.chat_template
        )
        export_model(folder, model, tokenizer, orbit.header, Facts(len(orbit), orbit.replay(model)))
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @classmethod
    def of_base(cls, base):
        """Return the base itself, as it was before any tuning."""
        plain = cls.__new__(cls)
        plain.model = AutoModelForCausalLM.from_pretrained(base)
        plain.tokenizer = AutoTokenizer.from_pretrained(base)
        return plain

    def answer(self, ids, most):
        new = self.model.generate(**ids, max_new_tokens=most, do_sample=False)[
            0, ids["input_ids"].shape[1] :
        ]
        return self.tokenizer.decode(new, skip_special_tokens=True), len(new)

    def after(self, prompt, most):
        return self.answer(self.tokenizer(prompt, return_tensors="pt"), most)

    def chat(self, turns, most, **options):
        how = {"return_tensors": "pt", "return_dict": True, "add_generation_prompt": True}
        return self.answer(self.tokenizer.apply_chat_template(turns, **how, **options), most)


@contextmanager
def serving(*words):
    """OpenAI's client of a server in a process of its own."""
    with serving_process(*words) as (_, client):
        yield client


@contextmanager
def serving_process(*words):
    """A server's process, and OpenAI's client for it, whose address it prints."""
    command = [sys.executable, "-m", "fedseed", "serve-model", *map(str, words), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    try:
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, line
        address, _, process.models_line = line.partition(", ")
        yield process, openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=600)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
