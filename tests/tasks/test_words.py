"""The task "words" and its base: what is right is known from how a review is written, and the base half knows it."""

import pytest

from fedseed.errors import RecipeError
from fedseed.tasks.partition import ByField, Dirichlet
from fedseed.tasks.words import BAD, FAMILIES, GOOD, TOPICS, WordsTask, reviews

SMALL = WordsTask(examples=60, validation=20, evaluation=30)


def feeling(text):
    """What the qualities of a review add up to, counted again from its words."""
    words, total = text.split(), 0
    for before, word in zip(["", *words], words, strict=False):
        value = (word in GOOD) - (word in BAD)
        total += {"not": -1, "very": 2}.get(before, 1) * value
    return total


def topic(text):
    """The topic of most nouns, counted again from the words."""
    counts = [sum(word in nouns for word in text.split()) for nouns in TOPICS.values()]
    return max(range(len(counts)), key=counts.__getitem__)


def test_what_is_true_of_a_review_can_be_read_in_it():
    for review in reviews(3, 300):
        assert (feeling(review.text) > 0) == review.good and feeling(review.text) != 0
        assert topic(review.text) == review.topic


def test_training_validation_and_test_reviews_are_apart_and_those_of_the_test_stay():
    data = SMALL.load()
    test = data.evaluation[""]
    train = [example for client in data.clients for example in client.examples]
    assert (len(train), len(data.validation), len(test)) == (60, 20, 30)
    texts = [example.text for example in (*train, *data.validation, *test)]
    assert len(set(texts)) == len(texts)
    assert SMALL.model_copy(update={"examples": 90}).load().evaluation == data.evaluation
    assert SMALL.model_copy(update={"seed": 1}).load().evaluation != data.evaluation
    assert SMALL.model_copy(update={"evaluate_on": "validation"}).load().evaluation[""] == list(data.validation)


def test_clients_may_have_a_family_or_a_word_each_or_mixtures():
    by_family = SMALL.model_copy(update={"partition": ByField(field="family")}).load()
    assert [client.name for client in by_family.clients] == ["feeling", "topic"]
    assert all({e.options for e in c.examples} == {FAMILIES[c.name].options} for c in by_family.clients)
    by_word = SMALL.model_copy(update={"partition": ByField(field="label")}).load()
    assert {client.name for client in by_word.clients} == {"great", "terrible", *TOPICS}
    uneven = SMALL.model_copy(update={"partition": Dirichlet(alpha=0.1)}).load()
    kinds = [len({e.options[e.gold] for e in client.examples}) for client in uneven.clients]
    assert len(kinds) == 5 and min(kinds) < 6
    with pytest.raises(RecipeError, match=r'task.partition.field = "topic": "words" has "label" and "family"'):
        SMALL.model_copy(update={"partition": ByField(field="topic")}).load()
