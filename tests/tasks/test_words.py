"""The task "words" and its base: what is right is known from how a review is written, and the base
half knows it.
"""

from fedseed.tasks.words import BAD, GOOD, TOPICS, WordsTask, reviews

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
    assert SMALL.model_copy(update={"evaluate_on": "validation"}).load().evaluation[""] == list(
        data.validation
    )
