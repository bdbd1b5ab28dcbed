"""A real Prometheus loads the alert rules, scrapes a node and answers every panel's question."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from streamlog.client.aio import Admin, Producer
from tests.monitoring.prometheus import Prometheus, running_prometheus
from tests.support.running_node import running_node

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
REMOTE = {"log.type": "unified", "remote.storage.enable": "true", "segment.bytes": str(1 << 20)}


def promtool(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_rules_and_configuration() -> None:
    said = promtool("check", "rules", "alerts.yml", folder=RULES.parent)
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert f"{len(rules)} rules found" in said
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", folder=RULES.parent)


def test_alerts_of_the_remote_tier_come_when_they_should(tmp_path: Path) -> None:
    """Of the annotations promtool would want every word again: those it plays have none."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    shutil.copy(Path(__file__).parent / "rules_of_the_remote_tier.yml", tmp_path / "played.yml")
    assert "SUCCESS" in promtool("test", "rules", "played.yml", folder=tmp_path)


def test_a_rule_that_never_fires_is_found(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
            if rule["alert"] == "StreamlogRemoteCopiesStopped":
                rule["expr"] = "streamlog_remote_copy_lag_segments < 0"
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    shutil.copy(Path(__file__).parent / "rules_of_the_remote_tier.yml", tmp_path / "played.yml")
    with pytest.raises(AssertionError, match="StreamlogRemoteCopiesStopped"):
        promtool("test", "rules", "played.yml", folder=tmp_path)


def test_a_prometheus_beside_a_node_answers_every_panel(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            running_node(data=str(tmp_path / "data")) as node,
            Admin(node.banner.grpc) as admin,
        ):
            await admin.create_topic("tiered", 1, REMOTE)
            async with Producer(node.banner.grpc, linger_ms=0) as producer:
                for _ in range(30):
                    await (await producer.send("tiered", b"v" * 120_000, partition=0))
            assert node.node.engine is not None
            assert node.node.engine.tiers is not None
            await node.node.engine.tiers.run_tasks()
            await asyncio.to_thread(_look, node.banner.http, tmp_path)

    asyncio.run(body())


def _look(http: str, folder: Path) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [http]}]
    with running_prometheus(yaml.safe_dump(config), folder) as prometheus:
        copied = "sum(streamlog_remote_copied_segments_total)"
        prometheus.until(lambda: (prometheus.value(copied) or 0) >= 3, "a scrape with copies")
        prometheus.until(
            lambda: (
                prometheus.value("sum(rate(streamlog_remote_copy_bytes_total[1m]))") is not None
            ),
            "a second scrape",
        )
        _ask_the_dashboard(prometheus)
        prometheus.until(lambda: _states(prometheus) == {"ok"}, "every rule evaluated")
        told = prometheus.get("alerts")["alerts"]
        assert [one["labels"] for one in told if one["state"] == "firing"] == []


def _states(prometheus: Prometheus) -> set[str]:
    groups = prometheus.get("rules")["groups"]
    return {rule["health"] for group in groups for rule in group["rules"]}


def _ask_the_dashboard(prometheus: Prometheus) -> None:
    panels = json.loads((DEPLOY / "grafana" / "streamlog.json").read_text("utf-8"))["panels"]
    answered = set()
    for panel in panels:
        for target in panel.get("targets", ()):
            asked = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            assert not re.search(r"\$\w", asked), asked
            if prometheus.get("query", query=asked)["result"]:
                answered.add(panel["title"])
    remote = ["Copied and read", "In the remote tier", "Remote reads against their bound"]
    assert set(remote) <= answered
    assert {"Appends", "Requests", "Ready"} <= answered
