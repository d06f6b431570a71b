"""What routers say, read from their metrics."""

import pytest

from controlplane.routers import RouterReport, Scraped, combined, report_of

METRICS = """
# TYPE splitwise_machines gauge
splitwise_machines{role="prompt",state="ready"} 2.0
splitwise_machines{role="prompt",state="known"} 3.0
splitwise_machines{role="token",state="ready"} 1.0
# TYPE splitwise_routes counter
splitwise_routes_total{mode="split"} 9.0
splitwise_routes_total{mode="whole"} 1.0
# TYPE splitwise_kv_bytes counter
splitwise_kv_bytes_total{mode="serialized",transport="tcp"} 5.0
splitwise_kv_bytes_total{mode="layerwise",transport="tcp"} 6.0
splitwise_kv_bytes_total{mode="layerwise",transport="shm"} 10.0
"""


def test_a_report_in_metrics() -> None:
    report = report_of(METRICS)
    assert report.machines == {"prompt": 2, "token": 1, "mixed": 0}
    assert report.split_share == "90%"
    assert report.transport == "tcp"


def test_several_routers_know_what_the_least_of_them_knows() -> None:
    one = RouterReport({"prompt": 2, "token": 1}, split=1, kv_bytes={"tcp": 1})
    other = RouterReport({"prompt": 1, "token": 3}, whole=3, kv_bytes={"shm": 2})
    both = combined([one, other])
    assert both.machines == {"prompt": 1, "token": 1, "mixed": 0}
    assert (both.split_share, both.transport) == ("25%", "shm")


def test_before_the_first_request_nothing_is_claimed() -> None:
    report = RouterReport({"prompt": 1})
    assert (report.split_share, report.transport) == (None, None)


async def test_a_router_that_does_not_answer_is_silent() -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        report = await Scraped(session).ask(["127.0.0.1:9"])
    assert "127.0.0.1:9 does not answer" in report.silent
    assert report.machines is None


def test_what_is_no_metrics_is_an_error() -> None:
    with pytest.raises(ValueError):
        report_of("<html>")
