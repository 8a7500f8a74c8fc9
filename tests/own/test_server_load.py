"""`fedseed serve-model` under many clients, of whom some ask badly and some leave
(`support.server_load`, which runs for five minutes by command; FEDSEED_SECONDS=300 does it here).
"""

import pytest

pytest.importorskip("openai", reason="the package `openai` (extra dev) asks")
pytest.importorskip("uvicorn", reason="the extra `serve` answers")
from support.server_load import BAD, put_under_load
from support.tiers import limit_seconds


@pytest.mark.slow
def test_fifty_clients_get_good_answers_or_a_reason(tmp_path):
    report = put_under_load(tmp_path, seconds=limit_seconds(15), clients=50)
    assert report.wrong == []
    assert not [status for _, status in report.answers if status == 500]
    assert report.total("good", 200) > 10 and report.total("call", 200) > 5
    assert report.total("changing", 200) > 0
    assert len(BAD) >= 20 and sum(report.total(kind) > 0 for kind in BAD) >= 15
    assert max(report.health_seconds) < 1
