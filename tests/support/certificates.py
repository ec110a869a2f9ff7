"""Certificates created at test time by the ``openssl`` program."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.needs import program

_EXTENSIONS = "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n"
"""Extensions of a certificate. Python 3.13 refuses one that does not name its authority's key."""


@dataclass(frozen=True)
class Certificates:
    """Files of an authority, and of a server and a client that it has signed; ``other_*`` are of another authority."""

    folder: Path

    def file(self, name: str) -> Path:
        return self.folder / name

    @property
    def ca(self) -> Path:
        return self.file("ca.crt")


def make_certificates(folder: Path) -> Certificates:
    """Create new keys and certificates that are valid for two days."""
    _authority(folder, "ca")
    _authority(folder, "other")
    _signed(folder, "server", "ca")
    _signed(folder, "client", "ca")
    _signed(folder, "other_client", "other")
    _run(folder, "ec", "-in", "server.key", "-aes128", "-passout", "pass:x", "-out", "locked.key")
    return Certificates(folder)


def _run(folder: Path, *words: str) -> None:
    subprocess.run([program("openssl"), *words], cwd=folder, check=True, capture_output=True)


def _key(*, to: str) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{to}.key"]


def _authority(folder: Path, name: str) -> None:
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]  # Python refuses an authority without it from 3.13 on
    _run(folder, "req", "-x509", *_key(to=name), "-out", f"{name}.crt", "-subj", f"/CN={name}", "-days", "2", *usage)


def _signed(folder: Path, name: str, by: str) -> None:
    (folder / "extensions").write_text(_EXTENSIONS)
    _run(folder, "req", *_key(to=name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
    signer = ["-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial"]
    words = ["x509", "-req", "-in", f"{name}.csr", *signer, "-days", "2", "-extfile", "extensions"]
    _run(folder, *words, "-out", f"{name}.crt")
