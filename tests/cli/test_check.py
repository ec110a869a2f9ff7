"""``millstream check``: exit codes and formats of monitoring systems, on redis-server and Millstream."""

import json
import re
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from cli.test_console import fill
from millstream.cli.console import checked
from millstream.cli.main import main
from millstream.ops.findings.check import CheckBounds, Measured, check
from support.frozen import WORKER, freeze
from support.ports import free_port
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver


def run(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream check`` in this process, without figures that grow with the clock unless requested."""
    off = [word for name in ("behind", "pending-age") if f"--{name}" not in words for word in (f"--{name}", "off")]
    return CliRunner().invoke(main, ["check", *words, *off, "--url", server.url])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--lag", "3,10"], 0, "MILLSTREAM OK - 1 figure is within"),
        (["--lag", "2,10"], 1, "MILLSTREAM WARNING - orders/billing lag 2 (warning from 2)"),
        (["--lag", "1,2", "--pending", "3,9"], 2, "CRITICAL - orders/billing lag 2 (critical from 2) (and 1 more)"),
        (["--lag", "2"], 2, "MILLSTREAM CRITICAL"),
        (["--behind", "1h,365d"], 2, "MILLSTREAM CRITICAL - orders/billing behind"),
        (["orders", "--unowned", "1"], 0, "MILLSTREAM OK"),
        (["orders", "billing", "--pending-age", "5m"], 2, "MILLSTREAM CRITICAL - orders/billing pending age"),
        (["--dead", "1,3"], 1, "MILLSTREAM WARNING - orders:dead dead 2 (warning from 1)"),
        (["shop", "--dead", "1,3"], 3, "MILLSTREAM UNKNOWN - there is no stream 'shop'"),
        (["orders", "bill", "--lag", "1"], 3, "has no group 'bill'"),
        (["--lag", "10,1"], 3, "the lower first"),
        (["--lag", "many"], 3, "--lag 'many'"),
    ],
)  # fmt: skip
def test_thresholds_decide(server: ServerProcess, client: redis.Redis, words: list[str], code: int, said: str) -> None:
    """The worst figure decides the state, the exit code and the first line of ``millstream check``."""
    fill(client, since=10**12)
    for _ in range(2):
        client.xadd("orders:dead", {"x": 1})
    done = run(server, *words)
    assert (done.exit_code, said in done.stdout.splitlines()[0]) == (code, True), done.output


@pytest.mark.parametrize("figure", ["behind", "pending-age"])
def test_entries_whose_ids_are_no_times_have_no_age(server: ServerProcess, client: redis.Redis, figure: str) -> None:
    """Entries with ids that are not times have no age. The output names such an id, and the lag decides."""
    fill(client)
    done = run(server, f"--{figure}", "1h")
    assert (done.exit_code, "-0 is not a time" in done.stdout) == (3, True)
    assert run(server, "--lag", "3").exit_code == 0


def test_dead_letters_stay_a_figure_when_there_are_none(server: ServerProcess, client: redis.Redis) -> None:
    """The figure of dead letters is 0 before the first one and after the last."""
    fill(client)
    data = [run(server, *words, "--dead", "1,9").stdout.partition("| ")[2] for words in ([], ["orders"])]
    assert data == ["'dead'=0;1;9;0\n", "'orders:dead dead'=0;1;9;0\n"]
    client.xdel("orders:dead", client.xadd("orders:dead", {"x": 1}))
    assert run(server, "--dead", "1,9").stdout.partition("| ")[2] == "'orders:dead dead'=0;1;9;0\n"


def test_an_unknown_lag_is_decided_by_its_bounds(server: ServerProcess, client: redis.Redis) -> None:
    """An unknown lag is decided by its bounds: ok below a threshold, critical above, and otherwise unknown."""
    fill(client)
    client.xdel("orders", "4-0")
    codes = [run(server, "--lag", word, "--count", "0").exit_code for word in ("3", "1", "2", "1,2", "1,5")]
    assert codes == [0, 2, 3, 3, 1]
    assert "lag is unknown (1 or more): an entry" in run(server, "--lag", "2", "--count", "0").stdout


def test_what_the_bounds_of_a_lag_leave_open_is_counted(server: ServerProcess, client: redis.Redis) -> None:
    """If the bounds of a lag do not decide, entries are counted up to the threshold or ``--count``."""
    fill(client, entries=250)
    client.execute_command("XGROUP", "SETID", "orders", "billing", "100-0")  # without ENTRIESREAD: 1 to 249
    codes = [run(server, "--lag", word).exit_code for word in ("200", "150,200", "100,200", "100,150")]
    assert codes == [0, 1, 1, 2]
    assert run(server, "--lag", "200", "--count", "100").exit_code == 3


def test_an_invalid_command_line_is_not_critical(server: ServerProcess) -> None:
    """A wrong command line ends with 3 (unknown), since Nagios reads 2 as critical."""
    assert run(server, "--no-such-option").exit_code == 3


def test_a_server_that_does_not_answer_is_critical() -> None:
    """An unreachable server is critical."""
    done = CliRunner().invoke(main, ["check", "--url", f"redis://127.0.0.1:{free_port()}"])
    assert (done.exit_code, done.stdout.startswith("MILLSTREAM CRITICAL - ")) == (2, True)


def test_json_has_every_figure(server: ServerProcess, client: redis.Redis) -> None:
    """JSON output has every figure with its thresholds, the worst first."""
    fill(client)
    found: dict[str, Any] = json.loads(run(server, "--lag", "1,2", "--pending", "99", "-o", "json").stdout)
    assert (found["status"], found["code"]) == ("critical", 2)
    assert [(one["figure"], one["status"], one["value"], one["critical"]) for one in found["figures"]] == [
        ("lag", "critical", 2, 2),
        ("pending", "ok", 3, 99),
    ]


def test_prometheus_reads_what_is_written(server: ServerProcess, client: redis.Redis) -> None:
    """The Prometheus output uses the workers' metric names for any stream names. An unknown lag is absent."""
    for key in ("orders", 'a"\n\\\x1b', b"\xff"):
        fill(client, key)  # type: ignore[arg-type]  # keys are any bytes
    client.xdel("orders", "4-0")
    text = run(server, "--lag", "1,100", "--behind", "1h", "-o", "prometheus").stdout
    families = {family.name: family for family in text_string_to_metric_families(text)}
    lags = {sample.labels["stream"]: sample.value for sample in families["redis_stream_group_lag"].samples}
    assert lags == {'a"\n\\\\x1b': 2, "\\xff": 2}
    states = families["millstream_check_status"].samples
    assert {(one.labels["stream"], one.value) for one in states if one.labels["figure"] == "lag"} == {
        (key, 1) for key in ("orders", 'a"\n\\\\x1b', "\\xff")
    }


def test_the_line_for_nagios_is_one_line(server: ServerProcess, client: redis.Redis) -> None:
    """The Nagios line stays one valid line for any name, such as one with a bar, quote, equals sign or newline."""
    fill(client, "a|b='c\nd\x1b[2J")
    (line,) = run(server, "--lag", "1", "--pending", "off").stdout.splitlines()
    assert line.startswith("MILLSTREAM CRITICAL - a/b=")
    assert line.count("|") == 1
    assert re.fullmatch(r"'[^'=|\n]*'=2;;1;0", line.partition("| ")[2])
    assert "\x1b" not in line


def test_all_figures_that_are_not_ok_are_on_one_line(server: ServerProcess, client: redis.Redis) -> None:
    """All figures that are not ok, and the performance data, are on one line, as NRPE reads only one."""
    fill(client)
    (line,) = run(server, "--lag", "1", "--pending", "3").stdout.splitlines()
    assert line.partition(" | ")[0] == (
        "MILLSTREAM CRITICAL - orders/billing lag 2 (critical from 1) (and 1 more): "
        "orders/billing pending 3 (critical from 3)"
    )
    client.xdel("orders", "4-0")
    (line,) = run(server, "--lag", "2", "--behind", "1h", "--count", "0").stdout.splitlines()
    assert line.startswith("MILLSTREAM UNKNOWN - ")
    assert line.count("is unknown") == 2


def test_a_stream_that_cannot_be_looked_at_is_not_ok(server: ServerProcess, client: redis.Redis) -> None:
    """A stream that the user may not read is unknown, also by default without a lag check."""
    fill(client)
    client.execute_command("ACL", "SETUSER", "looker", "reset", "on", ">x", "~*", "+scan")
    url = server.url.replace("//", "//looker:x@")
    done = CliRunner().invoke(main, ["check", "--url", url])
    assert (done.exit_code, done.stdout.partition(" - ")[0]) == (3, "MILLSTREAM UNKNOWN")
    assert "permission" in done.stdout


@pytest.mark.parametrize("style", ["nagios", "prometheus"])
def test_large_figures_are_written_in_full(style: str) -> None:
    """Large figures are written with all digits and without an exponent."""
    found = check([Measured("lag", "orders", "billing", 12_345_678)], {"lag": CheckBounds(10_000_001, 20_000_001)})
    text = checked.STYLES[style](found, "0", [])
    assert "12345678" in text
    assert "e+" not in text
    assert style != "nagios" or "=12345678;10000001;20000001;0" in text


def test_figures_that_a_frozen_worker_holds_up_are_below_it(server: ServerProcess, client: redis.Redis) -> None:
    """A cause stands before the figures that it holds up. Exit code, figures and metrics stay as they are."""
    freeze(client)
    done = run(server, "--pending", "1")
    first = done.stdout.splitlines()[0]
    assert done.exit_code == 2
    assert first.startswith(
        f"MILLSTREAM CRITICAL - the worker {WORKER} is blocked at bill.py:7 in bill: its event loop"
    )
    assert " and 16 more figures |" in first
    assert first.count("pending 3 (critical from 1)") == 1
    facts = json.loads(run(server, "--pending", "1", "-o", "json").stdout)
    (cause,) = facts["causes"]
    assert {one["cause"] for one in facts["figures"]} == {cause["id"]}
    assert run(server, "--pending", "9", "-o", "json").stdout.count('"causes": []') == 1


def test_doctor_folds_findings_below_their_cause(server: ServerProcess, client: redis.Redis) -> None:
    """``doctor`` shows the frozen worker first, and folds the pending entries and consumers that it explains."""
    freeze(client)
    words = ["doctor", server.url, "--pending-older", "0s"]
    done = CliRunner().invoke(main, words)
    assert done.stdout.startswith(f"problem: the worker {WORKER} is blocked at bill.py:7 in bill")
    assert "holds up  billing on orders: 48 pending, in 16 partitions" in done.stdout
    assert "dead consumer" not in done.stdout
    rows = json.loads(CliRunner().invoke(main, [*words, "-o", "json"]).stdout)
    folded = [row for row in rows if row["check"] in {"pending", "dead consumer"}]
    assert folded
    assert None not in {row["cause"] for row in folded}
    assert done.exit_code == (3 if any(row["level"] == "problem" for row in rows) else 1)
