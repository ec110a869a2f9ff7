"""The deployment files name only existing things, and pass the checks of their own tools."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from deploy.files import (
    COMPOSE,
    DEPLOY,
    DOCKERFILE,
    MANIFESTS,
    SCALERS,
    UNITS,
    command_lines,
    containers,
    documents,
    started,
    unit,
)
from millstream import times
from millstream.cli.main import main
from millstream.dashboards.boards import BOARDS
from millstream.worker.process.run import KILL_AFTER
from support.needs import lacking, package, program
from support.promql import metrics_of
from support.source import ROOT

LINES = command_lines()


@pytest.mark.parametrize(("where", "words"), LINES, ids=[f"{at}-{where}" for at, (where, _) in enumerate(LINES)])
def test_a_command_has_the_options_it_is_given(where: str, words: list[str]) -> None:
    """Each command line in the deployment files has options that its subcommand accepts."""
    found: click.Command | None = main
    rest = list(words)
    while isinstance(found, click.Group):
        found = found.get_command(click.Context(found), rest.pop(0))
    assert found is not None, words
    known = {name for option in found.params for name in option.opts}
    assert {word for word in rest if word.startswith("--")} - known == set()
    found.make_context(where, rest, resilient_parsing=True)


def test_every_file_is_on_the_page() -> None:
    """docs/deploy.md names every deployment file."""
    page = (ROOT / "docs/deploy.md").read_text()
    for path in [*DEPLOY.glob("*"), *SCALERS]:
        name = f"deploy/{path.relative_to(DEPLOY).as_posix()}"
        assert f"`{name}{'/' if path.is_dir() else ''}`" in page


def test_pages_that_files_send_to_are_there() -> None:
    """The pages of docs that deployment files and rules name exist."""
    files = [path for folder in (DEPLOY, ROOT / "src/millstream/dashboards") for path in folder.rglob("*.*")]
    named = {
        name for path in files if path.suffix != ".pyc" for name in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert "docs/operations.md" in named


def test_variables_are_ones_that_we_read() -> None:
    """The variables in the deployment files are ones that Millstream reads."""
    files = [path for path in [*DEPLOY.rglob("*"), ROOT / "docs/deploy.md"] if path.is_file()]
    named = {name for path in files for name in re.findall(r"\bMILLSTREAM_[A-Z_]+", path.read_text())}
    source = "\n".join(path.read_text() for path in (ROOT / "src/millstream").rglob("*.py"))
    assert {name for name in named if f'"{name}"' not in source} == set()
    assert {"MILLSTREAM_URL", "MILLSTREAM_REQUIREPASS"} <= named


def test_no_password_is_in_a_file() -> None:
    """No deployment file contains a password, and none is passed on a command line."""
    for _, words in LINES:
        assert not {"--requirepass", "--password"} & set(words)
        assert not any("redis://" in word for word in words)
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            written = re.findall(r"redis://:([^@\s]+)@", path.read_text())
            assert [one for one in written if not one.startswith(("$", "password"))] == [], path


def test_whoever_stops_a_worker_waits_for_its_grace() -> None:
    """Each service manager waits for a worker's grace period plus the time until it is killed."""
    least: dict[str, float] = {}
    for where, words in LINES:
        if words[0] == "run" and "--grace" in words:
            grace = times.span(words[words.index("--grace") + 1], "s") / 1000
            least[where] = grace + KILL_AFTER
    (pod,) = [pod for pod, container in containers() if container["name"] == "worker"]
    (drain,) = re.findall(r"timeout (\d+) ", str(pod["containers"][0]["lifecycle"]["preStop"]))
    given = {
        "worker": min(
            int(COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")),
            pod["terminationGracePeriodSeconds"] - int(drain),
        ),
        "millstream-worker@.service": int(unit(DEPLOY / "systemd/millstream-worker@.service")["TimeoutStopSec"][0]),
    }
    assert least.keys() == given.keys()
    assert {where: given[where] > seconds for where, seconds in least.items()} == dict.fromkeys(least, True)


def beside(name: str) -> str:
    """Return the path of a program that a Python package provides."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    return found or lacking(f"no {name} beside {sys.executable}")


def test_the_image_is_made_by_rule() -> None:
    """Hadolint accepts the Dockerfile. The last stage does not run as root and has no compiler."""
    done = subprocess.run([beside("hadolint"), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "USER 10001:10001" in last
    assert "gcc" not in last
    assert "HEALTHCHECK" in last


def test_the_image_takes_extras_and_files_that_there_are() -> None:
    """The Dockerfile copies existing files that .dockerignore allows, and installs existing extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r'"\.\[([a-z,]+)\]"', DOCKERFILE)
    assert set(named.split(",")) - set(extras) == set()
    let = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()}
    assert copied == let
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_what_kubernetes_takes(path: Path) -> None:
    """Each Kubernetes manifest conforms to the schema, in which an unknown field is an error."""
    validate = package("kubernetes_validate")
    for document in documents(path):
        validate.validate(document, validate.latest_version(), strict=True)
    document["spec"]["nonsense"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(document, validate.latest_version(), strict=True)


def test_pods_are_kept_small_and_looked_after() -> None:
    """Pods run without root, write only to volumes, and have three probes of a port that the pod has."""
    names = set()
    for pod, container in containers():
        names.add(container["name"])
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted <= {each["name"] for each in pod.get("volumes", [])} | {"data"}
        ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if "exec" in container[probe]:  # a server that reads its log listens, so its data are asked for
                assert "dbsize()" in container[probe]["exec"]["command"][-1]
                continue
            asked = container[probe].get("httpGet") or container[probe]["tcpSocket"]
            assert ports[asked["port"]] in container["args"]
            assert asked.get("path", "/healthz") in {"/healthz", "/readyz"}
    assert names == {"server", "worker"}
    for path in MANIFESTS:
        specs = [one["spec"] for one in documents(path)]
        (labels,) = [spec["template"]["metadata"]["labels"] for spec in specs if "template" in spec]
        for spec in specs:
            selector = spec["selector"].get("matchLabels", spec["selector"])
            assert selector.items() <= labels.items()


#: https://keda.sh/docs/latest/reference/scaledobject-spec/ and the pages of the two scalers
SPEC = {
    "scaleTargetRef",
    "pollingInterval",
    "cooldownPeriod",
    "initialCooldownPeriod",
    "idleReplicaCount",
    "minReplicaCount",
    "maxReplicaCount",
    "fallback",
    "advanced",
    "triggers",
}
NEEDED = {
    "redis-streams": {"address", "stream", "consumerGroup", "lagCount"},
    "prometheus": {"serverAddress", "query", "threshold"},
}
OPTIONAL = {
    "redis-streams": {"activationLagCount", "databaseIndex", "enableTLS", "unsafeSsl", "pendingEntriesCount"},
    "prometheus": {"activationThreshold", "authModes", "namespace", "ignoreNullValues", "unsafeSsl"},
}


@pytest.mark.parametrize("path", SCALERS, ids=lambda path: path.name)
def test_scalers_have_the_fields_that_keda_documents(path: Path) -> None:
    """The KEDA scalers have documented fields and text values, and scale an existing Deployment."""
    deployments = {
        one["metadata"]["name"] for file in MANIFESTS for one in documents(file) if one["kind"] == "Deployment"
    }
    found = {one["kind"]: one for one in documents(path)}
    scaled = found["ScaledObject"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert set(scaled["spec"]) - SPEC == set()
    assert scaled["spec"]["scaleTargetRef"]["name"] in deployments
    assert 1 <= scaled["spec"]["minReplicaCount"] < scaled["spec"]["maxReplicaCount"]
    assert "cooldownPeriod" not in scaled["spec"], "KEDA uses it only to scale to zero"
    scaler = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    assert scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] >= 300
    for trigger in scaled["spec"]["triggers"]:
        given: dict[str, Any] = trigger["metadata"]
        assert NEEDED[trigger["type"]] <= set(given) <= NEEDED[trigger["type"]] | OPTIONAL[trigger["type"]]
        assert {type(value) for value in given.values()} == {str}
        if "authenticationRef" in trigger:
            assert found["TriggerAuthentication"]["metadata"]["name"] == trigger["authenticationRef"]["name"]
        shown = {
            name
            for board in BOARDS
            for panel in board.panels
            for query, _ in panel.queries
            for name in metrics_of(query)
        }
        assert metrics_of(given.get("query", "")) - shown == set()


def test_services_of_compose_know_each_other() -> None:
    """The services in the Compose file name existing services and volumes, and publish ports on this machine only."""
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) - set(services) == set()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        named = [volume.partition(":")[0] for volume in service.get("volumes", [])]
        assert {name for name in named if not name.startswith(".")} - set(COMPOSE["volumes"]) == set()
    assert (DEPLOY / COMPOSE["services"]["server"]["build"]["context"]).resolve() == ROOT


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_what_systemd_takes(path: Path, tmp_path: Path) -> None:
    """The units pass systemd's checks: their programs exist, and their services have few permissions."""
    systemd = program("systemd-analyze")
    copy = tmp_path / path.name.replace("@", "@orders:app")
    copy.write_text(path.read_text().replace(started(path)[0], sys.executable))
    done = subprocess.run([systemd, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if path.name.partition(".")[0].rstrip("@") in line] == []
    words = [systemd, "security", "--offline=true", "--no-pager", "--threshold=20", str(copy)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    broken = tmp_path / "broken.service"
    broken.write_text(copy.read_text().replace("[Service]", "[Service]\nNonsense=yes"))
    done = subprocess.run([systemd, "verify", "--man=no", str(broken)], capture_output=True, text=True, check=False)
    assert "Nonsense" in done.stderr
