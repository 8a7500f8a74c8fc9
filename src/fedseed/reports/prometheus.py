"""A coordinator's figures for Prometheus: `serve --metrics-port`.

The package prometheus_client is imported only when it is used.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from threading import Lock
from typing import Any

from fedseed.errors import FedseedError, RecipeError, to_install
from fedseed.metrics import metric_of, metric_title, shown_metrics
from fedseed.reports.results import RoundLine

PLAIN = re.compile(r"[a-z][a-z0-9_]*")  # names that Prometheus allows


class Exporter:
    """A page with a run's figures for Prometheus, served by a thread of this process.

    Args:
        port: the port; 0: any free one.
        host: the address to listen at.

    Raises:
        RecipeError: the package prometheus_client is not installed.
        FedseedError: the port is taken.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        if find_spec("prometheus_client") is None:
            raise RecipeError(
                f"--metrics-port needs the package prometheus_client: {to_install('prometheus')}"
            )
        from prometheus_client import CollectorRegistry, start_http_server

        self._ask: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._last: Mapping[str, Any] | None = None
        self._lock = Lock()
        self._counts = {"up": 0.0, "down": 0.0, "rounds": 0.0}
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise FedseedError(f"--metrics-port {port}: {host}: {error}: choose another") from error
        self.port = int(self._server.server_port)

    def attach(self, ask: Callable[[], Mapping[str, Any] | None]) -> None:
        """Set the function that returns a coordinator's status; another thread calls it.

        It returns None if the coordinator is too busy to answer.
        """
        self._ask = ask

    def count(self, line: RoundLine) -> None:
        """Add a round that is over."""
        with self._lock:
            self._counts["rounds"] += 1
            self._counts["up"] += line.bytes_up * line.taking_part
            self._counts["down"] += line.bytes_down * line.taking_part

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Any]:
        """Return the figures; prometheus_client calls it at each request."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        status = self._last = self._ask() or self._last
        with self._lock:
            counts = dict(self._counts)
        description = "Payload of all clients since this process began."
        payload = CounterMetricFamily("fedseed_payload_bytes", description, labels=["direction"])
        for direction in ("up", "down"):
            payload.add_metric([direction], counts[direction])
        yield payload
        description = "Rounds that counted since this process began."
        yield CounterMetricFamily("fedseed_rounds_done", description, value=counts["rounds"])
        if status is None:
            return
        yield InfoMetricFamily(
            "fedseed_run", "The run.", value={"run": status["run"], "method": status["method"]}
        )
        for name, description, value in (
            ("fedseed_round", "The round that is open, or the last one.", status["round"]),
            ("fedseed_rounds", "Number of rounds of the run.", status["rounds"]),
            ("fedseed_clients", "Clients of the run.", status["clients"]),
            ("fedseed_clients_alive", "Clients with a recent message.", status["alive"]),
            (
                "fedseed_clients_waited_for",
                "Clients that the open round waits for.",
                len(status["waiting_for"]),
            ),
            (
                "fedseed_clients_drifted",
                "Clients whose weights differed from the others'.",
                len(status["drifted"]),
            ),
            (
                "fedseed_start_time_seconds",
                "When the coordinator began, in seconds since 1970.",
                status["began"],
            ),
            (
                "fedseed_resident_memory_bytes",
                "Resident memory of the coordinator.",
                status["memory_bytes"],
            ),
        ):
            yield GaugeMetricFamily(name, description, value=value)
        last = {name: value for name, value in status["last"].items() if isinstance(value, float)}
        for name in shown_metrics(
            name for name in last if PLAIN.fullmatch(name) and not name.startswith("bytes_")
        ):
            words = metric_title(name, unit=True)
            newest = "evaluation" if metric_of(name)[1].held_out else "round"
            description = f"{words[0].upper()}{words[1:]}, of the last {newest}."
            yield GaugeMetricFamily(f"fedseed_{name}", description, value=last[name])
        description = "Rounds repeated because of too few answers."
        yield CounterMetricFamily(
            "fedseed_repeated_rounds", description, value=status["repeated_rounds"]
        )
        description = "Messages not accepted, by client."
        refused = CounterMetricFamily("fedseed_refused_messages", description, labels=["client"])
        for client, reasons in status["refusals"].items():
            refused.add_metric([client], sum(reasons.values()))
        yield refused
