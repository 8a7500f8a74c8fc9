"""What secure sums cost, for vectors as long as each method's on the project's small base: bytes,
and seconds of CPU.

    python benchmarks/secure_sums.py [--clients 10] [--ahead 1 16]

One client trains once, for the length of an answer without secure sums. Then whole conversations
are held, for as many rounds as keys are agreed on for at the most, between clients and a
coordinator of this process. No network's time is in it: over one, a round has two exchanges more
than without, and a round with new keys three more.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.secure import count_words
from fedseed.privacy.protection import summand
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.settings import SecureSums
from fedseed.privacy.secure.summing import Summing
from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.secure import converse

RECIPES = {
    "ferret": [
        "small-ferret",
        "method.seeds=shared",
        "method.allocation=size",
        "method.training.steps=1",
    ],
    "zo-fedsgd": ["small-zo-fedsgd", "method.seeds=shared"],
    "feedsign": ["small-feedsign"],
    "fedkseed": ["small-fedkseed"],
    "fedmezo": ["small-fedmezo", "method.seeds=shared"],
}


class Conversation:
    """Clients and a coordinator that count what they say.

    Args:
        settings: of secure sums.
        clients: how many.
        words: of a vector.
        counted: whether they are votes.
    """

    def __init__(self, settings: SecureSums, clients: int, words: int, counted: bool) -> None:
        self.form = settings.form(counted)
        self.clients = {n: SecureClient(n, settings.threshold, self.form) for n in range(clients)}
        self.summing = Summing(settings.threshold, self.form, settings.ahead)
        self.vector = self.form.encode(np.arange(words, dtype=np.float64) % 100)
        self.said = self.asked = 0
        self.seconds = {"client": 0.0, "coordinator": 0.0}

    def say(self, client: int, ask: bytes) -> bytes:
        """A client's answer."""
        start = time.process_time()
        answer = self.clients[client].answer(ask)
        self.seconds["client"] += time.process_time() - start
        self.said += len(answer)
        self.asked += len(ask)
        return answer

    def round(self, number: int) -> None:
        """One round; the sum must be right."""
        start, before = time.process_time(), self.seconds["client"]
        converse(self.summing.prepare(number, 0, list(self.clients)), self.say)
        vectors = {}
        for n, client in self.clients.items():
            began = time.process_time()
            data = client.mask_words(number, 0, self.vector)
            self.seconds["client"] += time.process_time() - began
            self.said += len(data)
            vectors[n] = np.frombuffer(data[8:], self.form.dtype)
        total, _ = converse(self.summing.open(number, 0, vectors), self.say)
        assert (total == self.vector * np.array(len(self.clients), self.form.dtype)).all()
        self.seconds["coordinator"] += (
            time.process_time() - start - (self.seconds["client"] - before)
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--ahead", type=int, nargs="+", default=[1, 16])
    args = parser.parse_args()
    threshold, rounds = args.clients // 2 + 1, max(args.ahead)
    print(
        f"{args.clients} clients, {threshold} open a sum; of one client and round: bytes, "
        "milliseconds of CPU"
    )
    print(
        "method      words  bytes up without  keys for  up with  asked  client ms  coordinator ms"
    )
    for name, (source, *overrides) in RECIPES.items():
        common = ["task.clients=3", "task.families_per_client=1", "task.examples=10"]
        federation = build(read_recipe(source, [*overrides, *common, "federation.per_round=1"]))
        (client,) = federation.coordinator.open(1)
        answer = federation.worker.train(
            federation.coordinator.plan(client), client, federation.items[client]
        )
        assert answer.message is not None
        state, method = federation.coordinator.state, federation.method
        words = count_words(method, state)
        for ahead in args.ahead:
            settings = SecureSums(threshold=threshold, ahead=ahead)
            counted = summand(method).counted
            talk = Conversation(settings, args.clients, words, counted)
            for number in range(1, rounds + 1):
                talk.round(number)
            each = args.clients * rounds
            print(
                f"{name:<10} {words:>6,}  {len(answer.message) - FRAME_BYTES:>16,}  {ahead:>8}  "
                f"{talk.said / each:>7,.0f}  {talk.asked / each:>5,.0f}  "
                f"{1e3 * talk.seconds['client'] / each:>9.2f}  "
                f"{1e3 * talk.seconds['coordinator'] / rounds:>14.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
