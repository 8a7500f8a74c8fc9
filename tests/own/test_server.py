"""`fedseed serve-model`: OpenAI's own client is answered as the exported folders answer in plain
transformers.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedseed import Federation, Orbit, Subspace
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.orbit import Record
from fedseed.orbit.file import write_orbit
from fedseed.orbit.record import ending, pack_records
from support.chat_bases import LLAMA, chat_base
from support.command import refused

openai = pytest.importorskip("openai", reason="the package `openai` (extra dev) asks")
pytest.importorskip("uvicorn", reason="the extra `serve` answers")
from support.serving import Plain, serving, serving_process, tuned  # noqa: E402

TURNS = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Two orbits of a base without a chat template, of which one has its run's.

    With their exported folders.
    """
    folder = tmp_path_factory.mktemp("chats")
    base = str(chat_base(folder / "base", "llama", ""))
    runs = [
        tuned(base, folder / name, seed, ["What is it?"], rate=3e-2)
        for seed, name in enumerate(("rome", "bonn"))
    ]
    (runs[0] / "chat_template.jinja").write_text(LLAMA)
    return (
        folder,
        runs,
        {run.name: Plain(base, run, folder / f"{run.name}-exported") for run in runs},
    )


@pytest.mark.long
def test_a_model_tuned_in_subspaces_answers_as_its_export_does(chats, tmp_path):
    folder, _, _ = chats
    base, run = str(folder / "base"), tmp_path / "subspace"
    rows = [{"prompt": f"What is {word}", "completion": " two"} for word in ("it", "a", "Rome")]
    method = Subspace(rank=4, training={"learning_rate": 3e-2, "steps": 2, "batch": 2})
    model, tokenizer = load_model(base)
    Federation(model, [rows, rows], method, tokenizer=tokenizer, base=base, rounds=4, out=run).run()
    plain = Plain(base, run, tmp_path / "exported")
    before = Plain.of_base(base)
    prompts = ("What is it", "What", "a", "two")
    with serving(run) as client:
        answers = [
            client.completions.create(model="subspace", prompt=prompt, max_tokens=8, temperature=0)
            .choices[0]
            .text
            for prompt in prompts
        ]
    assert answers == [plain.after(prompt, 8)[0] for prompt in prompts]
    assert answers != [before.after(prompt, 8)[0] for prompt in prompts]


@pytest.mark.long
def test_the_first_line_has_the_address_and_the_models_names(chats):
    _, (rome, bonn), _ = chats
    with serving_process(rome, f"b={bonn}") as (process, client):
        assert process.models_line == "models rome, b (Ctrl-C ends)\n"
        assert [one.id for one in client.models.list()] == ["rome", "b"]


@pytest.mark.long
def test_clients_are_answered_as_the_exported_models_answer(chats):
    _, (rome, bonn), plain = chats
    with serving(rome, bonn / "model.orbit", f"third={bonn}") as client:
        assert [model.id for model in client.models.list()] == ["rome", "bonn", "third"]
        assert client.models.retrieve("bonn").owned_by == "fedseed"

        def asked(name, prompt):
            return client.completions.create(
                model=name, prompt=prompt, max_tokens=12, temperature=0
            )

        work = [
            (name, f"What is {word}")
            for name in ("rome", "bonn", "third")
            for word in ("Rome", "it", "two", "a")
        ]
        with ThreadPoolExecutor(6) as threads:  # they come in any order, and must not mix
            found = list(threads.map(lambda one: asked(*one), work))
        for (name, prompt), one in zip(work, found, strict=True):
            own = plain["bonn" if name == "third" else name]
            text, new = own.after(prompt, 12)
            given = len(own.tokenizer(prompt)["input_ids"])
            assert (one.choices[0].text, one.model) == (text, name)
            assert (one.usage.completion_tokens, one.usage.prompt_tokens) == (new, given)
            assert one.choices[0].finish_reason == ("length" if new == 12 else "stop")
        # the orbits and prompts make a difference
        assert len({one.choices[0].text for one in found}) > 4

        several = client.completions.create(
            model="rome", prompt=["What", "a"], max_tokens=5, temperature=0
        )
        assert [one.text for one in several.choices] == [
            plain["rome"].after(p, 5)[0] for p in ("What", "a")
        ]
        long = plain["rome"].after("What is it", 40)[0]
        stop = long[len(long) // 2 :][:3]
        cut = client.completions.create(
            model="rome", prompt="What is it", max_tokens=40, temperature=0, stop=stop
        )
        assert cut.choices[0].text == long.split(stop)[0] and cut.choices[0].finish_reason == "stop"
        assert cut.usage.completion_tokens < 40

        drawn = {"model": "rome", "prompt": "What", "max_tokens": 20, "temperature": 1.5}
        texts = [
            client.completions.create(**drawn, seed=seed).choices[0].text for seed in (1, 1, 2)
        ]
        assert texts[0] == texts[1] != texts[2]

        answer = client.chat.completions.create(
            model="rome", messages=TURNS, max_completion_tokens=10, temperature=0
        )
        assert answer.choices[0].message.content == plain["rome"].chat(TURNS, 10)[0]
        parts = [{"role": "user", "content": [{"type": "text", "text": TURNS[0]["content"]}]}]
        stream = client.chat.completions.create(
            model="rome", messages=parts, max_tokens=10, temperature=0, stream=True
        )
        text = "".join(event.choices[0].delta.content for event in stream)
        assert text == answer.choices[0].message.content


@pytest.mark.long
def test_what_is_wrong_is_said_as_openai_says_it(chats):
    _, (rome, bonn), _ = chats
    with serving(rome, bonn, "--max-tokens", 30) as client:
        complete, chat = client.completions.create, client.chat.completions.create
        wrong = [
            (
                openai.NotFoundError,
                "did you mean rome",
                "model_not_found",
                lambda: complete(model="rom", prompt="a"),
            ),
            (
                openai.NotFoundError,
                "no model 'x'",
                "model_not_found",
                lambda: client.models.retrieve("x"),
            ),
            (
                openai.NotFoundError,
                "Not Found",
                None,
                lambda: client.embeddings.create(model="rome", input="a"),
            ),
            (
                openai.BadRequestError,
                "bonn has no chat template",
                None,
                lambda: chat(model="bonn", messages=TURNS),
            ),
            (
                openai.BadRequestError,
                "30 at most",
                None,
                lambda: complete(model="rome", prompt="a", max_tokens=31),
            ),
            (
                openai.BadRequestError,
                "256 positions",
                None,
                lambda: complete(model="rome", prompt="a b " * 300),
            ),
            (
                openai.BadRequestError,
                "temperature: ",
                None,
                lambda: complete(model="rome", prompt="a", temperature=-1),
            ),
            (openai.BadRequestError, "n: ", None, lambda: complete(model="rome", prompt="a", n=2)),
            (
                openai.BadRequestError,
                "echo: this server knows no such key",
                None,
                lambda: complete(model="rome", prompt="a", echo=True),
            ),
            (openai.BadRequestError, "messages", None, lambda: chat(model="rome", messages=[])),
            (
                openai.APIStatusError,
                "1,048,576 bytes",
                None,
                lambda: complete(model="rome", prompt="a" * (1 << 21)),
            ),
        ]
        for kind, words, code, ask in wrong:
            with pytest.raises(kind, match=words) as refused:
                ask()
            assert refused.value.body["type"] == "invalid_request_error"
            assert refused.value.code == code
        assert refused.value.status_code == 413
        answer = client._client.post(
            "completions", content=b"{", headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400 and "not JSON" in answer.json()["error"]["message"]
        # what asks for nothing is no fault
        assert complete(model="rome", prompt="a", max_tokens=3, echo=False, logprobs=None).choices


def test_requests_beyond_what_waits_and_weights_that_are_wrong_are_told(
    base, tmp_path, monkeypatch
):
    from starlette.testclient import TestClient

    from fedseed.own import server

    run = tuned(base, tmp_path / "run", 1, ["the film was great"])
    orbit = Orbit.open(run / "model.orbit")
    steps = [Record(r.round, r.payload, "12" * 16) for r in orbit.records]
    write_orbit(
        tmp_path / "wrong.orbit", orbit.start, ending(pack_records(orbit.header.method, steps))
    )
    service = server.Service(server.name_sources([str(run), str(tmp_path / "wrong.orbit")]))
    client = TestClient(service.app())
    asked = {"model": "run", "prompt": "the film", "max_tokens": 4, "temperature": 0}
    first = client.post("/v1/completions", json=asked).json()["choices"]
    broken = client.post("/v1/completions", json={**asked, "model": "wrong"})
    assert (
        broken.status_code == 500 and "the weights' digest is" in broken.json()["error"]["message"]
    )
    assert client.post("/v1/completions", json=asked).json()["choices"] == first
    monkeypatch.setattr(server, "MOST_WAITING", 0)
    full = client.post("/v1/completions", json=asked)
    assert full.status_code == 503 and full.json()["error"]["type"] == "server_error"


def test_names_are_those_of_folders_and_files_and_each_is_one_model(base, tmp_path):
    from fedseed.own.server import name_sources

    run = tuned(base, tmp_path / "bird", 1, ["the film was great"])
    (tmp_path / "star.orbit").write_bytes((run / "model.orbit").read_bytes())
    assert list(name_sources([str(run), str(tmp_path / "star.orbit"), f"mine={run}"])) == [
        "bird",
        "star",
        "mine",
    ]
    with pytest.raises(
        RecipeError, match='another orbit has the name "bird"; give this one a name, as in mine='
    ):
        name_sources([str(run), str(run / "model.orbit")])
    with pytest.raises(RecipeError, match="not an orbit"):
        name_sources([base])
    with pytest.raises(RecipeError, match="no such folder or file"):
        name_sources([str(tmp_path / "moon.orbit")])


def test_without_what_speaks_http_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fedseed.own.server", raising=False)
    refused(1, "serve-model needs uvicorn: pip install '.[serve]'", "serve-model", "a.orbit")


@pytest.mark.slow
def test_two_hundred_requests_over_twenty_orbits_are_their_exports_answers(tmp_path):
    words = [f"{kind}{number}" for kind in ("bird", "star", "boat", "tree") for number in range(5)]
    runs = [
        tuned(
            "small",
            tmp_path / word,
            i,
            [f"Count: {n} times one {word} is {n} {word}" for n in (2, 3)],
            2e-3,
            20,
        )
        for i, word in enumerate(words)
    ]
    prompts = [
        f"Count: {n} times one {what} is"
        for n in (2, 5)
        for what in ("bird", "star", "cat", "a", "sun")
    ]
    with serving(*runs) as client, ThreadPoolExecutor(8) as threads:
        work = [(name, prompt) for prompt in prompts for name in words]
        ask = client.completions.create
        found = threads.map(
            lambda one: ask(model=one[0], prompt=one[1], max_tokens=12, temperature=0), work
        )
        texts = {one: answer.choices[0].text for one, answer in zip(work, found, strict=True)}
    answers = [[texts[run.name, prompt] for prompt in prompts] for run in runs]
    for run, own in zip(runs, answers, strict=True):
        plain = Plain("small", run, tmp_path / f"{run.name}-exported")
        assert own == [plain.after(prompt, 12)[0] for prompt in prompts]
    assert len(texts) == 200 and len(set(map(tuple, answers))) == 20  # no two orbits answer alike
