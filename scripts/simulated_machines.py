"""Machines of namespaces (network, processes, mounts, host name) on a switch, for scripts/fleet_lab.

The switch lies in namespaces of its own, which end with the script; nothing outside of them is reached. A stand-in for
ssh connects to the machines by TCP; with Ray they are nodes of a cluster.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

NAMESPACES = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc")
NETWORK, HERE, PORT, RAY_PORT = "10.77.0", "10.77.0.254", 2222, 6379
START_S = 120.0
NODE = (sys.executable, "-P", "-m", "bitbench.features.fleet.node")
# In a machine: what sshd does, a program for whoever connects.
SERVER = """
import socket, subprocess, sys
doors = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("open", flush=True)
while True:
    visitor, _ = doors.accept()
    subprocess.Popen(sys.argv[3:], stdin=visitor, stdout=visitor, stderr=subprocess.DEVNULL)
    visitor.close()
"""
# Beside the driver: what ssh does, which gives up after 30 s without an answer by the options that bitbench gives it.
SSH = """#!{python} -IS
import os, socket, sys, threading
try:
    way = socket.create_connection(("{network}." + sys.argv[-2][1:], {port}), timeout=20)
except OSError as error:
    sys.exit(f"ssh: connect to host {{sys.argv[-2]}}: {{error}}")
way.settimeout(None)
way.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
for option, value in (("KEEPIDLE", 5), ("KEEPINTVL", 5), ("KEEPCNT", 6), ("USER_TIMEOUT", 30_000)):
    way.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{{option}}"), value)
def there():
    while data := os.read(0, 65536):
        way.sendall(data)
    way.shutdown(socket.SHUT_WR)
threading.Thread(target=there, daemon=True).start()
with open(1, "wb", buffering=0, closefd=False) as out:
    while data := way.recv(65536):
        while data:
            data = data[out.write(data):]
"""
OUR_PROGRAMS = ("bitbench.features.fleet.node", "bitbench.loadgen.worker_process", "guardian.py", "null_server")
# Lost machines are asked again sooner: a laboratory has no hours.
DRIVER = (
    "from bitbench.features.fleet import machines; machines.QUARANTINE_S = 1.0; from bitbench.cli import main; main()"
)


class Machine:
    """On: a first process in namespaces of its own, and a cable to the switch. `core`: the only one it may use."""

    def __init__(self, number: int, place: Path, first_process: Sequence[str], core: int | None = None) -> None:
        self.name, self._number, self._place = f"m{number}", number, place
        self._first_process, self._core, self._starts = first_process, core, 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_on(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_open(self) -> bool:
        """To ssh."""
        return self._log.read_text().count("open\n") >= self._starts

    def start(self) -> None:
        self._starts += 1
        own = self._place / self.name
        own.mkdir(exist_ok=True)
        script = (
            f"hostname {self.name}; ip link set lo up; mount -t tmpfs tmpfs /dev/shm; "
            f"mount --bind {own} {self._place}/ray; "  # of Ray's sessions each has its own
            f"until ip addr add {address(self._number)}/24 dev eth0 2> /dev/null; do sleep 0.1; done; "
            'ip link set eth0 up; "$@"; exit $?'  # no exec: a shell as the first process takes care of orphans
        )
        pinned = [] if self._core is None else ["taskset", "--cpu-list", str(self._core)]
        command = [*pinned, "unshare", *NAMESPACES, "sh", "-c", script, "sh", *self._first_process]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        pid = self._process.pid
        until(lambda: _network_of(pid) != _network_of(os.getpid()), 10.0)
        hardware = f"02:00:00:00:00:{self._number:02x}"  # the same after a restart, so that nobody asks the old one
        there = ("peer", "name", "eth0", "address", hardware, "netns", str(pid))
        ip("link", "add", "name", self._cable, "type", "veth", *there)
        ip("link", "set", self._cable, "master", "switch", "up")

    def fail(self) -> None:
        """Of power: nobody says goodbye, so the cable goes first."""
        self.cut()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            ip("link", "delete", self._cable, is_there=False)  # the kernel does so, too, but some time later

    def cut(self) -> None:
        ip("link", "set", self._cable, "down", is_there=False)

    def mend(self) -> None:
        ip("link", "set", self._cable, "up", is_there=False)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(number)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Those whose command says one of these words."""
        found: list[psutil.Process] = []
        if self._process is not None:
            with suppress(psutil.Error):
                found = psutil.Process(self._process.pid).children(recursive=True)
        return [one for one in found if not words or says(one, *words)]

    @property
    def _log(self) -> Path:
        return self._place / f"{self.name}.log"

    @property
    def _cable(self) -> str:
        return f"p{self._number}-{self._starts}"


class Lab:
    """So many machines, which all answer, and the way by which a driver reaches them. They share all cores, unless
    each has one of its own."""

    def __init__(self, place: Path, count: int, *, ray: bool, own_cores: bool = False) -> None:
        self._place = place
        self._head: subprocess.Popen[bytes] | None = None
        self.environment = dict(os.environ)
        (place / "ray").mkdir()
        if ray:
            self._prepare_ray()
            self.where = f"ray://{HERE}:{RAY_PORT}?resource=machine"
        else:
            self._prepare_ssh()
            self.where = "ssh://" + ",".join(f"m{number}" for number in range(1, count + 1))
        cores = sorted(os.sched_getaffinity(0))[:count] if own_cores else [None] * count
        self.machines = [
            Machine(number, place, _ray_node(number) if ray else _server(number), core)
            for number, core in enumerate(cores, 1)
        ]
        for machine in self.machines:
            machine.start()
        if not until(self._all_answer, START_S):
            raise TimeoutError(f"not all machines answer; see {place}")

    def drive(self, study: Path, into: str = "out") -> subprocess.Popen[bytes]:
        return drive(study, "--on", self.where, environment=self.environment, into=into)

    def end(self) -> None:
        for machine in self.machines:
            machine.fail()
        if self._head is not None:
            self._head.terminate()
            self._head.wait(30)

    def _prepare_ssh(self) -> None:
        stand_in = self._place / "bin" / "ssh"
        stand_in.parent.mkdir()
        stand_in.write_text(SSH.format(python=sys.executable, network=NETWORK, port=PORT))
        stand_in.chmod(0o755)
        self.environment["PATH"] = f"{stand_in.parent}:{os.environ['PATH']}"

    def _prepare_ray(self) -> None:
        token = self._place / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        os.environ.update(self.environment)  # machines inherit it
        if not until(self._head_is_up, START_S):
            raise TimeoutError(f"the head of Ray does not start; see {self._place}/head.log")

    def _head_is_up(self) -> bool:
        """Started again where its start failed, likewise."""
        log = self._place / "head.log"
        if self._head is None or self._head.poll() is not None:
            command = [*_ray(HERE), "--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
            with log.open("wb") as said:
                self._head = subprocess.Popen([*command, f"--temp-dir={self._place}/ray"], stdout=said, stderr=said)
        return "Ray runtime started" in log.read_text()

    def _all_answer(self) -> bool:
        """A node of Ray whose start failed, as it does on a busy machine, is started again."""
        for machine in self.machines:
            if not machine.is_on:
                machine.start()
        if self._head is None:
            return all(machine.is_open for machine in self.machines)
        command = [sys.executable, "-m", "bitbench", "fleet", self.where]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=self.environment)
        return done.stdout.count("ready") >= len(self.machines)


def drive(
    study: Path, *where: str, environment: dict[str, str] | None = None, into: str = "out"
) -> subprocess.Popen[bytes]:
    """`where`: nothing for this machine alone."""
    command = [sys.executable, "-c", DRIVER, "run", "study.yaml", "--into", into, *where]
    with (study / "said.txt").open("ab") as said:
        return subprocess.Popen(command, cwd=study, env=environment, stdout=said, stderr=said)


def at_work() -> list[psutil.Process]:
    """Node programs, load workers, guardians and engines, on whichever machine."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and SERVER not in words and says(process, *OUR_PROGRAMS):
                found.append(process)
    return found


def says(process: psutil.Process, *words: str) -> bool:
    with suppress(psutil.Error):
        line = " ".join(process.cmdline()[:6])
        return any(word in line for word in words)
    return False


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def can_make_namespaces() -> bool:
    network = "ip link add name switch type bridge && ip link add name cable type veth peer name other"
    try:
        return subprocess.run([*_unshare(), "sh", "-c", network], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def run_inside(command: Sequence[str], environment: dict[str, str]) -> int:
    """All of it ends with this process: unshare alone would not listen to a polite signal."""
    return subprocess.run([*_unshare(), *command], check=False, env=environment).returncode


def make_switch() -> None:
    ip("link", "set", "lo", "up")
    ip("link", "add", "name", "switch", "type", "bridge")
    ip("addr", "add", f"{HERE}/24", "dev", "switch")
    ip("link", "set", "switch", "up")


def ip(*words: str, is_there: bool = True) -> None:
    """`is_there`: False where the thing may be gone."""
    subprocess.run(["ip", *words], check=is_there, capture_output=not is_there)


def address(number: int) -> str:
    return f"{NETWORK}.{number}"


def _unshare() -> list[str]:
    """With a user namespace where we are not root."""
    as_root = ["--user", "--map-root-user"] if os.geteuid() else []
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *as_root, *NAMESPACES]


def _server(number: int) -> list[str]:
    return [sys.executable, "-ISc", SERVER, address(number), str(PORT), *NODE]


def _ray_node(number: int) -> list[str]:
    return [*_ray(address(number)), f"--address={HERE}:{RAY_PORT}", "--resources", '{"machine": 1}']


def _ray(own: str) -> list[str]:
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={own}"]
    return [*start, "--num-cpus=1", f"--object-store-memory={100 * 2**20}", "--disable-usage-stats"]


def _network_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()
