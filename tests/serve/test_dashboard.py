"""Files of docs/serving/: the dashboard asks for metrics that there are, and the services of the
compose file start programs that there are."""

import json
import re
import shlex

import pytest
import yaml
from documents import ROOT
from prometheus_client.parser import text_string_to_metric_families
from stub_engine import StubEngine

from dart_jax.engine.statistics import Statistics
from dart_jax.programs.command_line import parse
from dart_jax.serve.config import ServeConfig
from dart_jax.serve.metrics import Metrics

PLACE = ROOT / "docs/serving"
DASHBOARD = json.loads((PLACE / "grafana.json").read_text())
COMPOSE = yaml.safe_load((PLACE / "docker-compose.yml").read_text())


@pytest.fixture(params=["dart", "vllm"])
def families(request):
    engine = StubEngine()
    engine.counts = Statistics(accepted_per_position=(3, 1), drafts=4)
    text = Metrics(engine, "demo", request.param).text().decode()
    return request.param, list(text_string_to_metric_families(text))


def test_the_dashboard_asks_for_what_there_is(families):
    prefix, members = families
    samples = {sample.name: sample.labels for family in members for sample in family.samples}
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    queries += [
        variable["query"]["query"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    ]
    names = re.findall(r"\$\{prefix\}:(\w+)", " ".join(queries))
    assert len(queries) == len(names) - sum(" / " in query for query in queries) > 15
    assert {f"{prefix}:{name}" for name in names} <= set(samples)
    for query in queries:
        for label in re.findall(r" by \((\w+)\)", query):
            name = re.search(r"\$\{prefix\}:(\w+)", query)[1]
            assert label in samples[f"{prefix}:{name}"]


def test_metrics_are_documented(families):
    prefix, members = families
    text = (PLACE.parent / "serving.md").read_text()
    for family in members:
        name = family.name.removeprefix(f"{prefix}:")
        if not name.endswith("_created"):
            assert f"`{name}`" in text or f"`{name}_total`" in text, name


def test_services_start_the_server():
    """And the others find each other."""
    services = COMPOSE["services"]
    for profile in ("cpu", "cuda"):
        service = services[profile]
        assert (PLACE / service["build"]["context"] / "Dockerfile").resolve() == ROOT / "Dockerfile"
        words = shlex.split(service["entrypoint"][2])
        assert words[:3] == ["exec", "dart-jax", "serve"]
        config = parse(ServeConfig, [word for word in words[3:] if word[0] != "$"], None)
        assert config.host == "0.0.0.0"
        assert service["ports"] == [f"127.0.0.1:{config.port}:{config.port}"]
        assert int(service["stop_grace_period"].removesuffix("s")) > config.drain
        alias = service["networks"]["default"]["aliases"][0]
        scraped = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])["scrape_configs"]
        assert scraped[0]["static_configs"][0]["targets"] == [f"{alias}:{config.port}"]
    [source] = yaml.safe_load(COMPOSE["configs"]["sources"]["content"])["datasources"]
    assert source["url"].split("/")[2].split(":")[0] in services
    assert "./grafana.json:/dashboards/grafana.json:ro" in services["grafana"]["volumes"]
