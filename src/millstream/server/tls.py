"""TLS for the listener and the link to a primary: it turns file names into contexts, or into a clear error."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from millstream.errors import UsageError

AuthClients = Literal["no", "optional", "yes"]

HANDSHAKE_SECONDS = 10.0
"""Seconds that a client's handshake may take; it occupies a descriptor, but does not count as a client."""
HANDSHAKES_MAX = 256
"""Largest number of simultaneous handshakes, if the limit of descriptors permits."""
SHUTDOWN_SECONDS = 2.0
"""Seconds that a closing connection waits for the client to close its side."""


class TlsError(UsageError):
    """The TLS files cannot be used; the message names the file, the reason and the remedy.

    What to do: correct that file. The files are PEM, the key has no passphrase, and certificate and key belong
    together.
    """


@dataclass(frozen=True, slots=True)
class Tls:
    """Settings of TLS for serving and following, named as in Redis's CONFIG and the command line."""

    port: int | None  # TCP port for TLS; 0 for a free one; None for none
    cert_file: Path | None = None  # Certificate of the server in PEM, followed by its chain
    key_file: Path | None = None  # Private key in PEM, without a passphrase
    ca_cert_file: Path | None = None  # Certificates of the authorities that sign clients' certificates, in PEM
    auth_clients: AuthClients = "yes"  # ``yes``: clients need a certificate; ``optional``: it is checked if present
    handshakes: int = HANDSHAKES_MAX  # Largest number of simultaneous handshakes, if the descriptor limit allows it
    grace: float = 1.0  # Seconds after which a handshake is ended if others wait for its place
    # True if the link to a primary uses TLS: its certificate is checked, and the server's own is sent
    replication: bool = False


_VERIFY = {"no": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "yes": ssl.CERT_REQUIRED}


def make_context(tls: Tls) -> ssl.SSLContext:
    """The context for a listener: TLS 1.2 or newer."""
    if tls.cert_file is None or tls.key_file is None:
        raise TlsError("TLS needs the server's certificate and key: give them with --tls-cert-file and --tls-key-file")
    if tls.auth_clients != "no" and tls.ca_cert_file is None:
        raise TlsError(
            "client certificates cannot be checked without a CA: give its certificate with --tls-ca-cert-file, or "
            "let clients in without a certificate by --tls-auth-clients no"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, tls)
    context.verify_mode = _VERIFY[tls.auth_clients]
    return context


def make_link_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for a link to a primary; it checks the signature of the certificate, but not the name.

    A primary has many names: REPLICAOF, FAILOVER and Sentinel mostly give an address. Redis does not compare names
    either.
    """
    if tls.ca_cert_file is None:
        raise TlsError(
            "--tls-replication cannot check the primary's certificate without a CA: give its certificate with "
            "--tls-ca-cert-file"
        )
    if (tls.cert_file is None) != (tls.key_file is None):
        raise TlsError("a certificate needs its key: give both, with --tls-cert-file and --tls-key-file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: Tls) -> None:
    """Load the named files into a context."""
    for option, file in (("cert", tls.cert_file), ("key", tls.key_file), ("ca-cert", tls.ca_cert_file)):
        if file is not None:
            _check_readable(f"--tls-{option}-file", file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.cert_file is not None and tls.key_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
        except ssl.SSLError as error:
            raise TlsError(_pair_sentence(tls.cert_file, tls.key_file, error)) from None
    if tls.ca_cert_file is not None:
        try:
            context.load_verify_locations(tls.ca_cert_file)
        except ssl.SSLError:
            raise TlsError(f"{tls.ca_cert_file} (--tls-ca-cert-file) has no certificate in PEM") from None


def _check_readable(option: str, file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise TlsError(f"{file} ({option}) cannot be read: {error.strerror or error}") from None


def _no_passphrase() -> NoReturn:
    raise TlsError("the key (--tls-key-file) is locked with a passphrase, which the server cannot get: unlock it")


def _pair_sentence(cert: Path, key: Path, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {key} (--tls-key-file) does not belong to the certificate {cert} (--tls-cert-file)"
    return f"{cert} (--tls-cert-file) and {key} (--tls-key-file) are not a certificate and a key in PEM"
