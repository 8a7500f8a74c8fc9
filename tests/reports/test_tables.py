from fedseed.reports.progress import describe
from fedseed.reports.results import RoundLine
from fedseed.reports.tables import Sheet, comparison_lines, comparison_table, cost_table, mean_and_deviation
from support.reports import printed, summary_of


def shown(metrics):
    return printed(comparison_table([("feedsign", summary_of(metrics))]))


def test_a_table_shows_accuracy_where_it_was_measured():
    text = shown({"loss": 0.5, "accuracy": 84.72})
    assert "accuracy" in text and "84.7" in text and "Rouge-L" not in text
    text = shown({"loss": 0.5, "rouge_l": 22.3})
    assert "accuracy" not in text and "22.3" in text and "Rouge-L" in text


def test_a_table_shows_whatever_metrics_a_task_has():
    text = shown({"loss": 0.5, "perplexity": 7.77, "f1": 31.26, "exact_match": 12.5, "validation_loss": 9.99})
    assert all(word in text for word in ("F1", "31.3", "exact", "12.5")) and "7.77" not in text and "9.99" not in text
    assert "Rouge-L" not in shown({"loss": 0.5}) and "unseen" not in text.lower()
    text = shown(
        {"loss": 0.5, "accuracy": 60.0, "mismatched_loss": 0.75, "mismatched_accuracy": 58.0, "own_score": 3.25}
    )
    assert all(word in text for word in ("mismatched", "0.750", "58.0", "own score", "3.2"))
    both = {"loss": 4.5, "rouge_l": 16.9, "unseen_loss": 3.7, "unseen_rouge_l": 18.6}
    assert "Unseen: tasks" in shown(both)
    lines = printed(comparison_table([("zo-fedsgd", summary_of(both))]), width=80).splitlines()
    assert max(map(len, lines)) <= 80 and any("18.6" in line and "2 s" in line for line in lines)  # nothing is cut


def test_parameters_are_those_of_each_method():
    whole, adapter = summary_of({"loss": 0.5}), {**summary_of({"loss": 0.5}), "parameters": 3, "adapter": {"rank": 1}}
    both = printed(comparison_table([("fedavg", whole), ("ferret", whole), ("fedit", adapter)]))
    assert "5 clients, 5 a round; parameters: 10 (fedavg, ferret), 3 (fedit)" in " ".join(both.split())
    assert printed(comparison_table([("fedavg", whole), ("ferret", whole)])).startswith("10 parameters, 5 clients,")
    assert printed(comparison_table([("fedit", adapter)])).startswith("3 parameters of an adapter, 5 clients,")
    assert printed(comparison_table([("x", {**whole, "clients": 1, "clients_per_round": 1})])).startswith(
        "10 parameters, 1 client, 1 a round"
    )


def test_no_one_times_fewer_and_no_zero_times():
    base = {
        **summary_of({"loss": 1.0}),
        "baseline": {"loss": 2.0},
        "payload_bytes_up": 100.0,
        "payload_bytes_down": 100,
    }
    like = {**base, "payload_bytes_up": 99.0}
    half = {**base, "payload_bytes_up": 66.0, "payload_bytes_down": 66.0}
    more = {**base, "payload_bytes_up": 50.0, "payload_bytes_down": 450.0}
    few = {**base, "payload_bytes_up": 1.0, "payload_bytes_down": 1.0}
    lines = comparison_lines([("a", base), ("like", like), ("half", half), ("more", more), ("few", few)])
    ends = ["about as many bytes", "1.5 times fewer bytes", "2.5 times more bytes", "100 times fewer bytes"]
    assert [line.rpartition("improvement with ")[2] for line in lines] == [f"{end}." for end in ends]


def test_what_a_round_costs_a_client_fits_a_terminal():
    seconds = {"local": 5.6, "projection": 0.25, "aggregation": 0.004, "rebuild": 24.7}
    numbers = dict.fromkeys(("scalars_up", "scalars_down", "integers_up", "integers_down", "bits_up", "bits_down"), 0.0)
    runs = [
        ("ferret", {"seconds_per_client": seconds, "exchanged": {**numbers, "scalars_up": 3900, "scalars_down": 3900}}),
        ("fedavg", {"seconds_per_client": seconds, "exchanged": {**numbers, "scalars_up": 3e9, "scalars_down": 3e9}}),
        ("feedsign", {"seconds_per_client": seconds, "exchanged": {**numbers, "bits_up": 1.0, "bits_down": 1.0}}),
        ("of an earlier fedseed", {}),
    ]
    text = printed(cost_table(runs), width=80)
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.strip() for line in text.splitlines()]
    rows = {name: next(line for line in lines if line.startswith(name)) for name, _ in runs}
    assert rows["ferret"].split() == ["ferret", "5.6", "s", "250", "ms", "4", "ms", "24.7", "s", "30.6", "s", "7,800"]
    assert rows["fedavg"].endswith("6.0e+09") and rows["feedsign"].endswith("2 bits")
    assert rows["of an earlier fedseed"].split()[4:] == ["-"] * 6


def test_a_round_in_a_few_words():
    assert describe(RoundLine(0, metrics={"loss": 0.5, "perplexity": 1.6})) == "held-out loss 0.500"
    line = RoundLine(2, taking_part=1, bytes_up=1500.0, train_loss=2.0, metrics={"loss": 0.5, "f1": 31.26})
    assert describe(line) == "held-out loss 0.500, held-out F1 31.3, local loss 2.000, 1,500 B up a client"


def test_sheets_as_text_markdown_and_latex():
    sheet = Sheet("A & B", ("method", "loss_x"), [["FedAvg 5%", "1.0 ± 0.1"], ["a|b", "-"]], "Note.")
    assert r"\caption{A \& B. Note.}" in sheet.latex() and r"FedAvg 5\% & 1.0 $\pm$ 0.1 \\" in sheet.latex()
    assert r"| a\|b | - |" in sheet.markdown() and "| --- | ---: |" in sheet.markdown()
    assert "FedAvg 5%  1.0 ± 0.1" in sheet.text()
    assert mean_and_deviation([1.0, 2.0, 3.0], 1) == "2.0 ± 1.0" and mean_and_deviation([2.5], 2) == "2.50"
    assert mean_and_deviation([1.0, float("nan")], 1) == "1.0 (1 not finite)"
    assert mean_and_deviation([float("inf")], 1) == "-"
