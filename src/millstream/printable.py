"""Safe display of text from other programs on a terminal or in a log. Every part may import this module.

The text of an exception, an entry or a server may contain anything. Examples are an ESC that moves the cursor or hides
a line, a BEL, and marks that change the direction of writing. It may also contain URLs with secrets.

If a URL is malformed, the end of its password is unknown. So a part is shown only if it has the form that such a part
must have. Three stars replace everything else.
"""

import re
from urllib.parse import unquote

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def printable(text: str) -> str:
    r"""Return text that cannot move a terminal's cursor: escape unprintable characters, but keep line breaks.

    Bytes that were decoded with ``surrogateescape`` are shown as bytes, ``\xff``.
    """
    if text.isprintable():
        return text
    text = _ESCAPED_BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


_STARS = "***"
#: Bounded like all patterns below, since unbounded backtracking takes seconds for 16,000 characters.
_BEGIN = r"[a-z][a-z0-9+.-]{0,40}://"
_SCHEME = re.compile(_BEGIN, re.IGNORECASE)
#: Schemes of paths to files, tables or buckets, which may contain an @.
_PLACES = ("file", "unix", "sqlite", "http", "https", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hdfs", "r2")
_LOCAL = frozenset({"file", "unix", "sqlite"})
#: Options of redis-py's and Millstream's connections that contain no secrets.
_SHOWN = frozenset(
    {
        *("client_name", "db", "decode_responses", "encoding", "fsync", "health_check_interval", "lib_name"),
        *("lib_version", "max_connections", "protocol", "retry_on_timeout", "socket_connect_timeout"),
        *("socket_keepalive", "socket_timeout", "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile"),
        *("ssl_check_hostname", "ssl_keyfile", "ssl_min_version", "timeout"),
    }
)
_SECRET = re.compile(r"pass|pwd|user|token|secret|key|sig|auth|cred", re.IGNORECASE)
_FREE = frozenset({"client_name", "lib_name"})
#: Parameters with arbitrary text; all others have a number or one of few words.
_TEXTS = _FREE | {"encoding", "lib_version", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"}
_CHOICE = re.compile(r"[\d.]*|true|false|yes|no|none|always|everysec|optional|required|TLSv1(_\d)?", re.IGNORECASE)
_NAME = re.compile(r"[\w.-]+")
_PLAIN = re.compile(r"[\w.+-]*")
_PORT = re.compile(r":\d+$")
_HOST = re.compile(r"(?:\[[0-9a-f:.%]*\]|[^:,/?#@\[\]\s]*)(?::(?:\d*|PORT))?", re.IGNORECASE)
_DATABASE = re.compile(r"\d*/?")
_PATHS = {
    "redis": _DATABASE,
    "rediss": _DATABASE,
    "redis+cluster": _DATABASE,
    "memory": re.compile(""),
    "redis+sentinel": re.compile(r"[\w.:-]*(?:/\d*)?/?"),
}
_SIMPLE_PATH = re.compile(r"[\w./-]*")
_WORD = re.compile(r"[^\s'\"<>()`]+")
#: A user and password with a character that normally ends a word.
_MARKED = re.compile(rf"({_BEGIN})(?=[^\s/@]*['\"<>()`])[^\s/@]*@", re.IGNORECASE)
#: A password with a space: a "port" that is not a number, and an @ later in the line.
_SPACED = re.compile(
    rf"({_BEGIN}[^\s/@:\['\"<>()`]*:)(?!\d{{1,5}}(?:[/?#,\s'\".)]|$))[^@\n]{{0,1000}}@(?=[\w.\[-])", re.IGNORECASE
)
#: A user and a server without a scheme; a plain `name@host` contains neither a password nor a port.
_BARE = re.compile(r"[^\s:@/]*:\S+@[\w.\-\[\]]+(?::\d+)?(?:/\w*)?(?:\?\S*)?|\S+@[\w.\-\[\]]+:\d+(?:/\w*)?(?:\?\S*)?")
_GIVEN = re.compile(r"((?:password|passwd|secret|token|access[_-]key(?:[_-]id)?)=['\"]?)[^&\s'\"]+", re.IGNORECASE)


def without_password(url: str) -> str:
    """Return the URL for messages, without user names that may be tokens and without malformed parts."""
    return _hidden(url)[0]


def has_password(url: str) -> bool:
    """Return True if the URL contains a password or a token. A user name alone does not count."""
    return _hidden(url)[1]


def without_secrets(text: str) -> str:
    """Return a text, perhaps from another program, with the secrets in its URLs replaced by stars."""
    if "://" in text or "@" in text:
        if "@" in text:
            text = _MARKED.sub(rf"\1{_STARS}@", _SPACED.sub(rf"\1{_STARS}@", text))
        text = _WORD.sub(_of_word, text)
    return _GIVEN.sub(rf"\1{_STARS}", text) if "=" in text else text


def _of_word(word: "re.Match[str]") -> str:
    whole = word[0]
    clean = whole.rstrip(".,;:!")
    found = _SCHEME.search(clean)
    if found is not None:
        start = found.start()
        return whole[:start] + without_password(clean[start:]) + whole[len(clean) :]
    if _BARE.fullmatch(clean):
        return without_password(clean) + whole[len(clean) :]
    return whole


def _hidden(url: str) -> tuple[str, bool]:
    """Return the URL as it may be shown, and True if it contained a password."""
    found = _SCHEME.match(url)
    if found is None:
        if "@" not in url or url.startswith("report:"):
            return url, False
        account, _, rest = url.rpartition("@")
        return _account(account) + _without_account("redis", rest)[0], ":" in account
    scheme, rest, kind = found[0], url[found.end() :], found[0][:-3].lower()
    end = _end_of_account(kind, rest)
    if end is None:
        return scheme + _STARS, True
    account, rest = rest[:end], rest[end:].removeprefix("@")
    shown, secret = _without_account(kind, rest)
    if end == 0:
        return scheme + shown, secret
    simple = kind.startswith("abfs") and ":" not in account  # the name of a container
    return f"{scheme}{f'{account}@' if simple else _account(account)}{shown}", secret or ":" in account


def _end_of_account(kind: str, rest: str) -> int | None:
    """Return the position of the @ after user and password: 0 if there is none, None if it is unknown."""
    hosts = re.split("[/?#]", rest, maxsplit=1)[0]
    head, _, query = rest.partition("?")
    if "@" in query and not all(_is_option(option) for option in query.split("&")):
        return None
    if kind in _PLACES and "@" not in hosts and (":" not in hosts or (kind.startswith("http") and _PORT.search(hosts))):
        return 0
    return max(head.rfind("@"), 0)


def _account(account: str) -> str:
    user, colon, _ = account.partition(":")
    return f"{user}:{_STARS}@" if colon and _PLAIN.fullmatch(user) else f"{_STARS}@"


def _without_account(kind: str, rest: str) -> tuple[str, bool]:
    rest, mark, _ = rest.partition("#")
    rest, asks, query = rest.partition("?")
    hosts, slash, path = rest.partition("/")
    options = [_option(kind, option) for option in query.split("&")] if asks else []
    right = kind in _PLACES or (_PATHS.get(kind) or _SIMPLE_PATH).fullmatch(path) is not None
    shown = (
        ",".join(map(_host, hosts.split(","))),
        slash + (path if right else _STARS),
        asks + "&".join(option for option, _ in options),
        f"#{_STARS}" if mark else "",
    )
    return "".join(shown), any(secret for _, secret in options)


def _host(host: str) -> str:
    if _HOST.fullmatch(host):
        return host
    name = host.partition(":")[0]
    return f"{name if _PLAIN.fullmatch(name) else ''}:{_STARS}"


def _is_option(option: str) -> bool:
    name = unquote(option.partition("=")[0])
    if "@" not in option:
        return name in _SHOWN
    return name in _FREE or (_NAME.fullmatch(name) is not None and _SECRET.search(name) is not None)


def _option(kind: str, option: str) -> tuple[str, bool]:
    """Return one option as it may be shown, and True if it contains a password."""
    name, sign, value = option.partition("=")
    plain = unquote(name)
    if plain in _SHOWN:
        return option if plain in _TEXTS or _CHOICE.fullmatch(value) else f"{name}{sign}{_STARS}", False
    if _NAME.fullmatch(plain) and _SECRET.search(plain):
        return f"{name}{sign}{_STARS}", "user" not in plain.lower()
    return option if kind in _PLACES and not _LOCAL & {kind} else _STARS, False
