"""Signatures by SSH keys, made and checked by ssh-keygen: the key is one that a person holds already, in a file, in an
agent or on a token, and its public half is where others look for it."""

import base64
import subprocess
import tempfile
from pathlib import Path

from bitbench.features.cards.types import CardError
from bitbench.util.child_environment import tool_environment
from bitbench.util.child_python import NOWHERE
from bitbench.util.errors import UsageError
from bitbench.util.safe_files import SafeFolder

NAMESPACE = "bitbench-card"  # a signature for anything else, such as a commit, is no signature of a card
BEGIN, END = b"-----BEGIN SSH SIGNATURE-----\n", b"-----END SSH SIGNATURE-----\n"
_LINE = 70  # characters, as ssh-keygen writes them
_PATIENCE_S = 300  # to type a passphrase, or to touch a token
_CHECK_S = 30


def sign(message: bytes, key: Path) -> bytes:
    """`key`: a private key, or a public one whose private half is in an agent."""
    if not key.is_file():
        raise UsageError(f"there is no key {key}; `ssh-keygen -t ed25519` makes one, --unsigned does without")
    done = _keygen(["-q", "-Y", "sign", "-f", str(key.absolute()), "-n", NAMESPACE], message, _PATIENCE_S)
    if done.returncode != 0 or not (done.stdout.startswith(BEGIN) and done.stdout.endswith(END)):
        raise CardError(f"{key} did not sign ({_words(done)}); give the path of an SSH private key with --key")
    return in_one_spelling(done.stdout)


def in_one_spelling(armored: bytes) -> bytes:
    """The same signature in lines of one length: the same bits could be written in many ways, and a card has one.
    Raises CardError where it is no base64."""
    try:
        coded = b"".join(armored.removeprefix(BEGIN).removesuffix(END).split(b"\n"))
        coded = base64.b64encode(base64.b64decode(coded, validate=True))
    except ValueError:
        raise CardError("its signature is not readable; the card was changed or is damaged") from None
    lines = [coded[start : start + _LINE] + b"\n" for start in range(0, len(coded), _LINE)]
    return b"".join((BEGIN, *lines, END))


def fingerprint(message: bytes, signature: bytes) -> str:
    """Of the key that made this signature, such as `SHA256:k36h…`. Raises CardError where it is not of this message."""
    with tempfile.TemporaryDirectory(prefix="bitbench-") as folder:
        file = SafeFolder(Path(folder)).write("signature", signature.decode("ascii", errors="replace"))
        done = _keygen(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file)], message, _CHECK_S)
    words = done.stdout.decode("utf-8", errors="replace").split()
    if done.returncode != 0 or not words or not words[-1].startswith("SHA256:"):
        raise CardError("its signature is not of this content; the card was changed after it was signed")
    return words[-1]


def signer(message: bytes, signature: bytes, signers: Path) -> str:
    """Who signed, by a file as `man ssh-keygen` describes it under ALLOWED SIGNERS. Raises CardError for others."""
    if not signers.is_file():
        raise UsageError(f"there is no file {signers}; each of its lines is a name and a public key")
    with tempfile.TemporaryDirectory(prefix="bitbench-") as folder:
        file = SafeFolder(Path(folder)).write("signature", signature.decode("ascii", errors="replace"))
        known = ["-f", str(signers.absolute()), "-n", NAMESPACE, "-s", str(file)]
        found = _keygen(["-Y", "find-principals", *known], message, _CHECK_S)
        name = found.stdout.decode("utf-8", errors="replace").partition("\n")[0].strip()
        if found.returncode != 0 or not name:
            raise CardError(f"no key in {signers} made its signature")
        if _keygen(["-Y", "verify", "-I", name, *known], message, _CHECK_S).returncode != 0:
            raise CardError("its signature is not of this content; the card was changed after it was signed")
    return name


def _keygen(arguments: list[str], message: bytes, patience_s: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=message,
            capture_output=True,
            check=False,
            timeout=patience_s,
            cwd=NOWHERE,
            env=tool_environment(),
        )
    except FileNotFoundError:
        raise CardError("ssh-keygen is not installed; install OpenSSH's client (8.2 or newer)") from None
    except subprocess.TimeoutExpired:
        raise CardError(f"ssh-keygen did not answer within {patience_s:.0f} s") from None


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    said = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip()
    return said.splitlines()[-1][:200] if said else f"exit code {done.returncode}"
