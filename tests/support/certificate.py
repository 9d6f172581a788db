"""A certificate for 127.0.0.1, made by the openssl program."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    file: Path
    key_file: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self)
        return context


def make_certificate(folder: Path) -> Certificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program to make a certificate")
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    kind = (
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    )
    names = ("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1")
    places = ("-out", str(made.file), "-keyout", str(made.key_file))
    subprocess.run([openssl, "req", *kind, *names, *places], check=True, capture_output=True)
    return made
