"""The section of docs/benchmarks.md on the server, generated completely from docs/benchmarks.json."""

from pathlib import Path
from statistics import median
from typing import Any

from bench.server import goals, pictures
from bench.server.servers import NATIVE, PYTHON, REDIS

ROOT = Path(__file__).parents[2]
PAGE, RESULTS, PICTURES = ROOT / "docs/benchmarks.md", ROOT / "docs/benchmarks.json", ROOT / "docs/curves"
BEGIN, END = "<!-- begin: written by make bench -->\n", "<!-- end -->\n"
SERVERS = (REDIS, NATIVE, PYTHON)

HOW = """\
`make bench` starts redis-server and Millstream, with its [native core](server.md#the-native-core) and in plain Python.
It sends them the same commands in turns (A B C A B C), and does not pin processes to cores. The clients are C programs,
so that they are not the bottleneck: redis-benchmark for PING, SET, GET and XADD, and `bench/server/load.c` for the
rest. Each cell has the commands a second and then the **microseconds of the server's processor time for each
command**. On a machine with other work the second figure is more reliable, since it does not include waiting for a
core. A ratio compares a server with redis-server in the same round, and the tables show the median of the rounds.
Above 1 Millstream is ahead.

Each part has the day and the commit of its measurement. If two parts show the same command with different figures, the
difference includes the changes between their commits, and the later figure holds.
"""


def write(results: dict[str, Any]) -> None:
    """Write the page and the pictures."""
    PAGE.write_text(rewritten(PAGE.read_text(), results))
    found = results.get("curves", {}).get("found", {})
    pictures.draw({name: pictures.picture(name, by_size) for name, by_size in found.items()}, PICTURES)


def rewritten(page: str, results: dict[str, Any]) -> str:
    """Return the page with its section generated again."""
    return placed(page, BEGIN, section(results))


def placed(page: str, begin: str, text: str) -> str:
    """Return the page with a text between the mark where it begins and the next end."""
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(END)
    return head + begin + text + END + tail


def section(results: dict[str, Any]) -> str:
    """Return the whole section as Markdown."""
    parts = [HOW, _goals(results)]
    makers = {
        "cases": ("Commands", _cases),
        "paced": ("Time until a reply at half of Redis's peak", _paced),
        "woken": ("A thousand blocked readers woken", _woken),
        "memory": ("Memory", _memory),
        "redis-py": ("Through redis-py", _through_redis_py),
        "in-process": ("In the caller's process", _in_process),
        "curves": ("Curves", _curves),
    }
    for part, (title, make) in makers.items():
        if part in results:
            parts.append(f"### {title}\n\n{_about(part, results[part]['about'])}\n\n{make(results[part]['found'])}")
    return "\n".join(parts)


def _about(part: str, about: dict[str, Any]) -> str:
    low, high = about["load"]
    rounds = "1 round" if about["rounds"] == 1 else f"{about['rounds']} rounds"
    return (
        f'`make bench ARGS="--only {part}"`: {rounds} of {about["seconds"]:g} s for each, {about["day"]}, commit'
        f" {about['commit']}, {about['cores']} cores ({about['processor']}) shared with other work, load average"
        f" {low:g} to {high:g}, Python {about['python']}, redis-server {about['redis']}."
    )


def _goals(results: dict[str, Any]) -> str:
    head = ["ratio to redis-server", NATIVE, "", PYTHON, ""]
    told = "The ratios compare processor time and rate. If a goal has several commands, the worst counts."
    return f"### Goals\n\n{told}\n\n{table(head, goals.rows(results))}"


def _cases(found: dict[str, Any]) -> str:
    return _rate_table(found, "commands/s, us of processor")


def _through_redis_py(found: dict[str, Any]) -> str:
    told = "Entries a second. redis-py itself takes a large part of the time, the same for all servers.\n\n"
    return told + _rate_table(found, "entries/s, us of processor")


def _in_process(found: dict[str, Any]) -> str:
    told = [
        "A cycle is XADD of three fields, XREADGROUP COUNT 1 and XACK, one after the other. With a server the",
        "processor time is that of both processes; in process there is only one. `millstream.connect` returns a client",
        "of redis-py over the store, and `millstream.open_store` the store without redis-py. Ratios compare each case",
        "with redis-py and redis-server over TCP in the same round, with asyncio for asyncio clients. The table shows",
        "the median of the rounds: by the clock and, in **bold**, by processor time.\n",
    ]
    for setting, cases in found.items():
        stored = "in memory" if setting == "memory" else f"fsync {setting}"
        rows = []
        for case, rounds in cases.items():
            base = next(told for told in cases if REDIS in told and ("asyncio" in told) == ("asyncio" in case))
            ratios = [
                median(one[key] / other[key] for one, other in zip(cases[base], rounds, strict=True))
                for key in ("clock", "micros")
            ]
            cells = [digits(median(one[key] for one in rounds)) for key in ("clock", "micros")]
            rows.append([case, *cells, "" if case == base else f"{ratios[0]:.1f}, **{ratios[1]:.1f}**"])
        told.append(table([f"a cycle {stored}", "us of the clock", "us of processor", "ratio"], rows))
    return "\n".join(told)


def _rate_table(found: dict[str, Any], unit: str) -> str:
    servers = _there(found)
    head = [unit, *servers, *(f"ratio, {name}" for name in servers[1:])]
    rows = []
    for name, rounds in found.items():
        cells = [_rate(rounds[server]) for server in servers]
        told = [goals.ratios(rounds, server) for server in servers[1:]]
        ratios = ["" if one is None else f"{one[1]:.2f}, **{one[0]:.2f}**" for one in told]
        rows.append([name, *cells, *ratios])
    return table(head, rows)


def _rate(rounds: list[dict[str, Any]]) -> str:
    return f"{median(one['rate'] for one in rounds):,.0f}, {digits(median(one['micros'] for one in rounds))}"


def _paced(found: dict[str, Any]) -> str:
    told = (
        "Fifty clients send each command when it is due, even before earlier replies. p50, p99 and p99.9 are in ms.\n\n"
    )
    servers = _there(found)
    rows = []
    for name, rounds in found.items():
        rate = median(one["rate"] for one in rounds[REDIS])
        rows.append([name, f"{rate:,.0f}", *(_percentiles(rounds[server]) for server in servers)])
    return told + table(["command", "a second", *servers], rows)


def _percentiles(rounds: list[dict[str, Any]]) -> str:
    if not all(one["whole"] for one in rounds):
        return f"does not keep up: {median(one['rate'] for one in rounds):,.0f} a second"
    return ", ".join(f"{median(one[key] for one in rounds) / 1000:.2f}" for key in ("p50", "p99", "p999"))


def _woken(found: dict[str, Any]) -> str:
    told = (
        "One XADD wakes 1,000 clients that wait in XREAD BLOCK. The table has the milliseconds until the last client\n"
        "has its reply, and the microseconds of processor time for each. The client is Python, so the first figure\n"
        "is an upper bound.\n\n"
    )
    servers = _there({"": found})
    rows = []
    for server in servers:
        rounds = found[server]
        last = median(1e6 / one["rate"] for one in rounds)
        rows.append([server, f"{last:.1f}", digits(median(one["micros"] for one in rounds))])
    return told + table(["server", "ms", "us of processor"], rows)


def _memory(found: dict[str, Any]) -> str:
    servers = _there(found)
    told = "The figures are the bytes by which the process grows for each item, measured over many items.\n\n"
    return told + table(
        ["bytes", *servers], [[name, *(f"{by[server]:g}" for server in servers)] for name, by in found.items()]
    )


def _curves(found: dict[str, Any]) -> str:
    told = [
        "The curves show microseconds of processor time for each command. Four clients send 16 commands at a time. In",
        "the curves by clients, each client sends one at a time.\n",
    ]
    for name, by_size in found.items():
        servers = _there(by_size)
        rows = [
            [server, *(digits(median(one["micros"] for one in by_size[size][server])) for size in by_size)]
            for server in servers
        ]
        told.append(f"![{name}]({PICTURES.name}/{pictures.file_name(name)})\n")
        told.append(table([name, *(f"{int(size):,}" for size in by_size)], rows))
    return "\n".join(told)


def _there(found: dict[str, Any]) -> list[str]:
    """Return the measured servers in their order."""
    return [server for server in SERVERS if any(rounds.get(server) is not None for rounds in found.values())]


def digits(value: float) -> str:
    """Return a number with at least three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)
