"""Completion after Tab in bash, zsh and fish, in the shells themselves, and its time limit."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.ports import free_port
from support.servers import ServerProcess

MILLSTREAM = Path(sys.executable).parent
BREAKS = " \t\n\"'><=;|&(:"


@pytest.fixture
def filled(memory_server: ServerProcess) -> ServerProcess:
    """Streams with names of every kind, a group, consumers and a worker."""
    with memory_server.client() as client:
        client.flushall()
        strange = (
            b"or\xff",
            "or\x1b[2J",
            "or'quote",
            "or der",
            "or\nline",
            "or*",
            "or{a,b}",
            "or{1..9999999}",
            "--yes",
            "=ls",
        )
        for key in ("orders", "orders:eu:1", "orders,eu", "other", *strange):
            client.xadd(key, {"n": 1})
        client.set("orphan", "no stream")
        client.xgroup_create("orders", "billing", id="0")
        client.xgroup_create("orders", "shipping", id="0")
        client.xreadgroup("billing", "web-1", {"orders": ">"})
        client.zadd("millstream:workers", {"host-1-4711": 1})
        client.zadd("millstream:{orders}:later:due", {"xmas-7": 1, "xmas-8": 2, "or\x1b[2J": 3})
        client.hset("millstream:schedules", "nightly", "{}")
        client.hset("millstream:limits", "crm", "1/s")
    return memory_server


def bash(lines: Sequence[str], url: str, home: Path, **environment: str) -> list[list[str]]:
    """Return Bash's completions of some lines: the words for the one under the cursor.

    Args:
        lines: typed text, with the cursor at its end.
        url: URL of the server in the environment.
        home: home directory with the contexts, if any.
        environment: more environment variables.
    """
    script = """
        source <(_MILLSTREAM_COMPLETE=bash_source millstream)
        for COMP_LINE in "$@"; do
            COMP_POINT=${#COMP_LINE}
            _millstream_completion millstream
            printf '%s\\n' "${COMPREPLY[@]}" .
        done
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *lines],
        env={
            "PATH": f"{MILLSTREAM}:/usr/bin:/bin",
            "MILLSTREAM_URL": url,
            "XDG_CONFIG_HOME": str(home),
            "COMP_WORDBREAKS": BREAKS,
            "HOME": str(home),
            "MILLSTREAM_COMPLETE_TIMEOUT": "30",
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    answers = done.stdout.split(".\n")
    assert len(answers) == len(lines) + 1
    return [[word for word in offer.splitlines() if word] for offer in answers[:-1]]


def offers(cases: dict[str, list[str]], url: str, home: Path, **environment: str) -> None:
    """Assert the completions of each line.

    Args:
        cases: each line with its expected words.
        url: URL as for :func:`bash`.
        home: home directory as for :func:`bash`.
        environment: environment as for :func:`bash`.
    """
    found = bash(list(cases), url, home, **environment)
    assert dict(zip(cases, found, strict=True)) == cases


def test_bash_offers_what_is_on_the_server(filled: ServerProcess, tmp_path: Path) -> None:
    """Bash completes the server's streams, groups, consumers and workers, also names with a colon."""
    cases = {
        "millstream stream show or": ["orders", "orders,eu", "orders:eu:1"],
        "millstream stream show ": ["orders", "orders,eu", "orders:eu:1", "other"],
        "millstream stream show orders:e": ["eu:1"],
        "millstream stream show orders:eu:": ["1"],
        "millstream group show orders ": ["billing", "shipping"],
        "millstream pending claim orders billing --to w": ["web-1"],
        "millstream worker show ": ["host-1-4711"],
        "millstream later cancel orders x": ["xmas-7", "xmas-8"],
        "millstream schedule pause ": ["nightly"],
        "millstream limit set ": ["crm"],
        "millstream consumer ": ["ls", "rm"],
        "millstream group show nowhere ": [],
    }
    offers(cases, filled.url, tmp_path)


def test_bash_asks_the_server_that_the_line_names(filled: ServerProcess, tmp_path: Path) -> None:
    """Completion reads the server of --url, or of --context with its password. Context names are completed too."""
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    file = tmp_path / "millstream/config.toml"
    file.parent.mkdir()
    file.write_text(
        f'[contexts.here]\nurl = "{filled.url}"\n[contexts.asks]\nurl = "{nobody}"\npassword-prompt = true\n'
    )
    file.chmod(0o600)
    cases = {
        f"millstream stream show --url {filled.url} oth": ["other"],
        "millstream stream show --context here oth": ["other"],
        f"millstream group create orders b --url {filled.url} --like s": ["shipping"],
        "millstream stream show --context ": ["asks", "here"],
        "millstream context use h": ["here"],
        "millstream stream show --context asks oth": [],
    }
    offers(cases, nobody, tmp_path)
    file.write_text("broken")
    offers({"millstream stream show --context here oth": [], "millstream context use h": []}, nobody, tmp_path)


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """Completion offers nothing and prints nothing if the server does not answer in time."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        offers({"millstream stream show or": []}, url, tmp_path, MILLSTREAM_COMPLETE_TIMEOUT="0.1")
    offers({"millstream stream show or": []}, f"redis://127.0.0.1:{free_port()}/0", tmp_path)


def test_names_are_asked_for_in_bounds(memory_server: ServerProcess, tmp_path: Path) -> None:
    """Completion offers a bounded number of names, and reads a bounded number of keys."""
    from millstream.cli.shared.completing import MOST

    with memory_server.client() as client:
        client.flushall()
        with client.pipeline(transaction=False) as pipe:
            for number in range(MOST + 50):
                pipe.xadd(f"s{number}", {"n": 1})
            pipe.execute()
        client.config_resetstat()
        [words] = bash(["millstream stream show s"], memory_server.url, tmp_path)
        assert len(words) == MOST
        assert client.info("commandstats")["cmdstat_scan"]["calls"] <= 10


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_offer_the_same(filled: ServerProcess, tmp_path: Path, shell: str) -> None:
    """Zsh and fish offer the same words as bash."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {"PATH": f"{MILLSTREAM}:/usr/bin:/bin", "MILLSTREAM_URL": filled.url, "HOME": str(tmp_path)}
    environment["MILLSTREAM_COMPLETE_TIMEOUT"] = "30"
    if shell == "fish":
        script = "_MILLSTREAM_COMPLETE=fish_source millstream | source; complete -C 'millstream stream show or'"
    else:
        script = """
            compdef() { :; }; compadd() { print -rl -- "${(P@)@[-1]}"; }
            eval "$(_MILLSTREAM_COMPLETE=zsh_source millstream)"
            words=(millstream stream show or); CURRENT=4; _millstream_completion
        """
    done = subprocess.run([shell, "-c", script], env=environment, capture_output=True, text=True, check=True)
    offered = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert {"orders", "orders:eu:1", "orders,eu"} <= offered, (done.stdout, done.stderr)
    assert "orphan" not in offered
