"""Dashboard and alert rules name metrics and labels that a real node has."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from streamlog.client import Tls
from streamlog.client.aio import Consumer, Producer
from tests.packaging.promql import Names, names_in
from tests.support.certificates import Authority
from tests.support.running_node import running_node
from tests.support.s3 import S3Tests

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "streamlog.json").read_text("utf-8"))
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))
SCRAPE = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
TARGET_LABELS = {"instance", "job"}
"""What Prometheus adds to every series."""
PROMETHEUS_OWN = {"up"}

ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [
    *((f"panel {panel['title']}", target["expr"]) for panel, target in TARGETS),
    *((f"alert {rule['alert']}", rule["expr"]) for rule in ALERTS),
]

Metrics = dict[str, tuple[str, frozenset[str]]]
"""Sample name → kind of metric, labels."""


@pytest.fixture(scope="module")
def metrics(s3_tests: S3Tests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metrics]:
    """Of a node that has it all: a remote store, a WAL on disk, a remote tier, traffic."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_tests.server.environment.items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("node")
        yield asyncio.run(_collect(s3_tests.new_url(), folder))


async def _collect(store: str, folder: Path) -> Metrics:
    places = {"store": store, "meta": f"rocksdb://{folder}/meta", "wal_dir": f"{folder}/wal"}
    places["log_dir"] = f"{folder}/logs"
    authority = Authority(folder)
    node, tls = authority.issue("node"), Tls(ca=str(authority.ca))
    secured = {"tls__certificate": str(node.certificate), "tls__key": str(node.key)}
    async with running_node(**places, **secured, tls__http=False, wal="disk") as running:
        async with Producer(running.banner.grpc, tls=tls) as producer:
            await (await producer.send("seen", b"value"))
        async with Consumer(running.banner.grpc, auto_offset_reset="earliest", tls=tls) as consumer:
            await consumer.assign([("seen", 0)])
            assert await consumer.poll(10)
        page = await asyncio.to_thread(_page, running.banner.http)
        assert running.node.engine is not None
        declared = {
            name: frozenset(getattr(collector, "_labelnames", ()))
            for name, collector in running.node.engine.registry._names_to_collectors.items()
        }
    found: Metrics = {}
    for family in text_string_to_metric_families(page):
        labels = declared.get(family.name, frozenset())
        suffixes = {
            "counter": ("_total",),
            "gauge": ("",),
            "histogram": ("_bucket", "_sum", "_count"),
        }[family.type]
        for suffix in suffixes:
            extra = {"le"} if suffix == "_bucket" else set()
            found[family.name + suffix] = (family.type, labels | extra)
        for sample in family.samples:
            assert set(sample.labels) <= found[sample.name][1], sample
    return found


def _page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def problems(expression: str, metrics: Metrics) -> list[str]:
    """What an expression names that is not there, or uses in a way that never has a value."""
    names = names_in(expression)
    if not names.selected:
        return ["it names no metric"]
    return [
        *(
            f"there is no metric {metric}"
            for metric in names.selected
            if metric not in metrics and metric not in PROMETHEUS_OWN
        ),
        *(
            f"{metric} has no label {label}"
            for metric, labels in names.selected.items()
            for label in sorted(labels - TARGET_LABELS)
            if metric in metrics and label not in metrics[metric][1]
        ),
        *(
            f"no metric here has a label {label}"
            for label in sorted(names.grouped - TARGET_LABELS)
            if not any(label in metrics.get(one, ("", frozenset()))[1] for one in names.selected)
        ),
        *_misused(expression, names, metrics),
    ]


def _misused(expression: str, names: Names, metrics: Metrics) -> Iterator[str]:
    for metric in names.selected:
        kind = metrics.get(metric, ("gauge", frozenset()))[0]
        is_absolute_count = metric == "streamlog_log_failed_partitions_total" or (
            metric == "streamlog_log_retention_errors_total"
        )
        if (kind in ("counter", "histogram")) != (metric in names.ranged) and not (
            is_absolute_count and kind == "counter"
        ):
            yield f"{metric} is a {kind}: rate and increase are for counters and histograms alone"
    buckets = {metric for metric in names.selected if metric.endswith("_bucket")}
    if ("histogram_quantile" in expression) != bool(buckets):
        yield "quantiles are for buckets, and buckets for quantiles"


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=lambda text: text[:60])
def test_every_expression_names_what_a_node_has(
    where: str, expression: str, metrics: Metrics
) -> None:
    assert problems(expression, metrics) == [], where


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("streamlog_no_such_thing", "there is no metric streamlog_no_such_thing"),
        ("streamlog_engine_appends", "there is no metric streamlog_engine_appends"),
        ("streamlog_engine_appends_total", "streamlog_engine_appends_total is a counter: rate"),
        ("rate(streamlog_ready[5m])", "streamlog_ready is a gauge: rate"),
        ('streamlog_ready{topic="t"}', "streamlog_ready has no label topic"),
        ("sum by (topic) (streamlog_ready)", "no metric here has a label topic"),
        ("rate(streamlog_loop_lag_seconds_bucket[5m])", "quantiles are for buckets"),
        ("1 + 1", "it names no metric"),
    ],
)
def test_what_is_wrong_is_seen(expression: str, problem: str, metrics: Metrics) -> None:
    assert any(one.startswith(problem) for one in problems(expression, metrics))


@pytest.mark.parametrize(
    "expression",
    ["sum(a", "a)", "a{b}", 'a{b="c"', "a[5]", "rte(a[5m])", "a ? b", "sum by a (b)", "{a='b'}"],
)
def test_what_is_no_promql_is_seen(expression: str) -> None:
    with pytest.raises(ValueError):
        names_in(expression)


def test_the_parser_finds_names_labels_and_ranges() -> None:
    names = names_in(
        'histogram_quantile(0.99, sum by (le, instance) (rate(a_bucket{b=~"c|d", e!="}"}[5m]))) > '
        "2e3 and on (job) time() - f{} > 0 unless (g or vector(0))"
    )
    assert names.selected == {"a_bucket": {"b", "e"}, "f": set(), "g": set()}
    assert names.grouped == {"le", "instance", "job"}
    assert names.ranged == {"a_bucket"}


def test_every_metric_of_the_node_is_ours(metrics: Metrics) -> None:
    assert {name for name in metrics if not name.startswith("streamlog_")} <= {
        name for name in metrics if name.startswith(("process_", "python_"))
    }


# the dashboard


def test_the_dashboard_loads_and_its_panels_are_told_apart() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    for panel in PANELS:
        assert panel["targets"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_variables_ask_for_what_a_node_has(metrics: Metrics) -> None:
    queries = [
        one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"
    ]
    assert queries
    for query in queries:
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert asked is not None
        assert asked[1] in metrics
        assert asked[2] in TARGET_LABELS | metrics[asked[1]][1]


def test_variables_that_are_used_are_there() -> None:
    known = {one["name"] for one in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    used = set(re.findall(r"\$\{?([a-z_]\w*)", json.dumps(DASHBOARD["panels"])))
    assert used <= known
    assert {"datasource", "instance"} <= used


def test_legends_use_labels_that_the_query_keeps() -> None:
    for panel, target in TARGETS:
        kept = names_in(target["expr"]).grouped
        if "sum" not in target["expr"]:
            kept = kept | TARGET_LABELS
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]


@pytest.mark.parametrize(
    "subject",
    [
        *("appends_total", "append_bytes", "ack_seconds", "topic_bytes_out", "store_requests"),
        *("wal_live_bytes", "upload_backlog", "metadata_commit_seconds", "checkpoint_timestamp"),
        *("loop_lag", "resident_memory", "queue_bytes_bound", "cache_hits", "dead_objects"),
        *("deleted_objects", "write_failures", "streamlog_requests_total", "compaction_"),
        *("remote_copy_bytes", "remote_copy_lag", "remote_errors", "remote_reads_pending_bound"),
    ],
)
def test_the_dashboard_shows(subject: str) -> None:
    assert any(subject in target["expr"] for _, target in TARGETS)


# the alert rules


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Streamlog[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "runbook"}
    assert len(rule["annotations"]["runbook"]) > 80
    # A summary names the node where the expression keeps it.
    names = names_in(rule["expr"])
    kept = names.grouped | (TARGET_LABELS if "sum" not in rule["expr"] else set())
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert used <= kept
    assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0s"))


def test_alerts_have_names_of_their_own_and_both_severities() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    assert {rule["labels"]["severity"] for rule in ALERTS} == {"warning", "critical"}


def test_commands_in_runbooks_exist() -> None:
    from streamlog.cli.main import Commands

    commands = set(re.findall(r"`streamlog (\w+)", yaml.safe_dump(RULES, width=10_000)))
    assert commands
    assert commands <= set(Commands.lazy)


def test_the_scrape_example_loads_the_rules_and_names_the_job() -> None:
    assert SCRAPE["rule_files"] == ["alerts.yml"]
    (job,) = SCRAPE["scrape_configs"]
    jobs = {match for rule in ALERTS for match in re.findall(r'job="(\w+)"', rule["expr"])}
    assert jobs == {job["job_name"]}
    ((target,),) = [one["targets"] for one in job["static_configs"]]
    assert target == "127.0.0.1:9645"
