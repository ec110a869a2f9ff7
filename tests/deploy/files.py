"""The deployment files as documents, with every ``millstream`` command line in them."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from support.source import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SCALERS = sorted((DEPLOY / "keda").glob("*.yaml"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
PROGRAM = "/opt/millstream/bin/millstream"


def documents(path: Any) -> list[dict[str, Any]]:
    """Return the objects in a manifest file."""
    return list(yaml.safe_load_all(path.read_text()))


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each pod's specification with one of its containers."""
    for path in MANIFESTS:
        for document in documents(path):
            pod = document.get("spec", {}).get("template", {}).get("spec")
            if pod is not None:
                for container in pod["containers"]:
                    yield pod, container


def unit(path: Any) -> dict[str, list[str]]:
    """Return the settings of a unit, of all sections: name -> its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def started(path: Any, instance: str = "orders:app") -> list[str]:
    """Return the words of a unit's ExecStart as systemd expands them, with the program first."""
    settings = unit(path)
    (line,) = settings["ExecStart"]
    options = [value.strip('"').removeprefix("OPTIONS=") for value in settings.get("Environment", [])]
    return shlex.split(line.replace("%i", instance).replace("$OPTIONS", " ".join(options)))


def command_lines() -> list[tuple[str, list[str]]]:
    """Return each ``millstream`` command line with its place, without the program's name."""
    found = [("Dockerfile", json.loads(text)) for text in re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)]
    found += [("Dockerfile", json.loads(text)[1:]) for text in re.findall(r" CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)]
    found += [
        (name, service["command"])
        for name, service in COMPOSE["services"].items()
        if service.get("image") == "millstream"
    ]
    found += [(container["name"], container["args"]) for _, container in containers()]
    found += [(path.name, started(path)[1:]) for path in UNITS]
    for _, container in containers():
        for word in container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", []):
            found += [("preStop", shlex.split(line)) for line in re.findall(r"millstream ([^|]+)", word)]
    return found
