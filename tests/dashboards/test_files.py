"""Dashboards and rules as files: Grafana and Prometheus accept them, and the names in them exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.dashboards.boards import BOARDS
from millstream.dashboards.catalogue import FILES, find
from millstream.dashboards.grafana import Dashboard
from support.needs import program
from support.promql import metrics_of
from support.source import ROOT

RULES = [
    rule
    for name in ("recording", "alerts")
    for group in yaml.safe_load(find(name).text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
PAGE = (ROOT / "docs/monitoring.md").read_text()


def names(rules: list[dict[str, Any]]) -> list[str]:
    return [rule["alert"] for rule in rules]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_dashboard_is_one_that_grafana_takes(board: Dashboard) -> None:
    """Each panel of a dashboard has a unique number, a free place and a description, and the chosen data source."""
    model = json.loads(find(board.uid.removeprefix("millstream-")).text())
    assert (model["uid"], model["schemaVersion"] >= 36) == (board.uid, True)
    source, *variables = model["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": "${" + source["name"] + "}"}
    panels = model["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    known = {variable["name"] for variable in variables} | {source["name"], "__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(model))) <= known
    for asking in (*variables, *panels, *(target for panel in panels for target in panel["targets"])):
        assert asking["datasource"] == chosen
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["type"] in {"timeseries", "stat", "table"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))


def test_dashboards_and_files_are_found_by_one_name() -> None:
    """Each dashboard and file has a fixed unique name, so that links and imports stay valid."""
    assert [board.uid for board in BOARDS] == [
        "millstream-streams",
        "millstream-workers",
        "millstream-server",
        "millstream-pipelines",
    ]
    assert len({each.name for each in FILES}) == len({each.file for each in FILES}) == len(FILES)


def test_queries_are_promql() -> None:
    """Prometheus's parser accepts every query of every panel and variable, with the variables filled in."""
    queries = [query for board in BOARDS for panel in board.panels for query, _ in panel.queries]
    queries += [variable.metric for board in BOARDS for variable in board.variables]
    filled = [re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "5m")) for query in queries]
    rules = [{"record": "a:b:c", "expr": query, "labels": {"n": str(at)}} for at, query in enumerate(filled)]
    checked = check_rules(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(filled)} rules found" in checked.stdout
    broken = {"groups": [{"name": "g", "rules": [{"record": "a", "expr": "sum(("}]}]}
    assert check_rules(yaml.safe_dump(broken)).returncode == 1


def check_rules(text: str) -> subprocess.CompletedProcess[str]:
    """Run ``promtool check rules`` on a text."""
    words = [program("promtool"), "check", "rules", "/dev/stdin"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False)


def test_rules_do_what_they_say(tmp_path: Path) -> None:
    """Prometheus's tool accepts the rules, and each alert fires in its situation and in no other."""
    promtool = program("promtool")
    CliRunner().invoke(main, ["dashboards", "write", str(tmp_path)], catch_exceptions=False)
    folder = tmp_path / "prometheus"
    shutil.copy(Path(__file__).with_name("rules.test.yml"), folder)
    for words in (["check", "config", "scrape.yml"], ["test", "rules", "rules.test.yml"]):
        done = subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert {name for name in names(ALERTS) if name not in (folder / "rules.test.yml").read_text()} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=names(ALERTS))
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    """An alert names the fault, its place and an existing command, and has a section in docs/monitoring.md."""
    told = rule["annotations"]
    assert set(told) == {"summary", "description", "runbook"}
    assert "{{ $labels." in told["summary"]
    assert told["runbook"] == f"docs/monitoring.md#{rule['alert'].lower()}"
    assert f"\n### {rule['alert']}\n" in PAGE
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    for words in re.findall(r"millstream ((?:[a-z]+ ?)+)", told["description"]):
        assert command(words.split()[0]) is not None, words


def command(name: str) -> click.Command | None:
    return main.get_command(click.Context(main), name)


def test_the_page_names_every_alert_and_no_other() -> None:
    """docs/monitoring.md names every alert and every dashboard, and no others."""
    assert re.findall(r"^### (Millstream\w+)$", PAGE, re.MULTILINE) == names(ALERTS)
    assert all(f"| `{each.name}` | `{each.file}` |" in PAGE for each in FILES)


def test_alerts_go_by_recording_rules_that_are_there() -> None:
    """Alerts use only recording rules that exist."""
    made = {rule["record"] for rule in RULES if "record" in rule}
    asked = {name for rule in ALERTS for name in metrics_of(rule["expr"]) if ":" in name}
    assert asked - made == set()
    assert asked


def test_files_are_written_and_nobodys_changes_are_lost(tmp_path: Path) -> None:
    """``dashboards write`` writes all files, and nothing the second time. Changed files are kept without --force."""
    folder = tmp_path / "new" / "monitoring"
    words = ["dashboards", "write", str(folder)]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, f"Wrote {len(FILES)} files" in done.stderr) == (0, True)
    assert {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()} == {
        each.file: each.text() for each in FILES
    }
    changed = folder / "prometheus/alerts.yml"
    changed.write_text("mine")
    (folder / "prometheus/scrape.yml").unlink()
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, str(changed) in done.stderr) == (5, True)
    assert (changed.read_text(), (folder / "prometheus/scrape.yml").exists()) == ("mine", False)
    done = CliRunner().invoke(main, [*words, "--force"])
    assert (done.exit_code, f"Wrote 2 files below {folder}; 6 are there already" in done.stderr) == (0, True)


@pytest.mark.parametrize("place", ["grafana", "prometheus/alerts.yml"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_written_through(tmp_path: Path, place: str, *, there: bool) -> None:
    """``dashboards write`` does not follow symbolic links, even with --force."""
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "monitoring" / place
    link.parent.mkdir(parents=True)
    if there:
        elsewhere.mkdir() if place == "grafana" else elsewhere.write_text("mine")
    link.symlink_to(elsewhere)
    for words in ([], ["--force"]):
        done = CliRunner().invoke(main, ["dashboards", "write", str(tmp_path / "monitoring"), *words])
        assert (done.exit_code, f"{link} is a symbolic link" in done.stderr) == (5, True)
    assert elsewhere.exists() == there
    assert not there or (list(elsewhere.iterdir()) == [] if place == "grafana" else elsewhere.read_text() == "mine")
    assert [path for path in (tmp_path / "monitoring").rglob("*") if path.is_file() and not path.is_symlink()] == []


def test_files_are_shown_by_name() -> None:
    """``dashboards show`` prints a file exactly, and names the valid names for an unknown one."""
    for each in FILES:
        assert CliRunner().invoke(main, ["dashboards", "show", each.name]).stdout == each.text()
    done = CliRunner().invoke(main, ["dashboards", "show", "\x1b[2J"])
    assert (done.exit_code, done.stdout) == (4, "")
    assert "\x1b" not in done.stderr
    assert "streams, workers, server" in done.stderr
    rows = json.loads(CliRunner().invoke(main, ["dashboards", "ls", "-o", "json"]).stdout)
    assert [row["name"] for row in rows] == [each.name for each in FILES]
