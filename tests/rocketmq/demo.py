"""Replaces RocketMQ 5's name servers with this one while messages flow: the steps of docs/rocketmq.md.

Name server, broker, clients and mqadmin are Apache's, from Maven Central. All processes run on loopback and end with
the demo. Only the jars stay, in ``.bench``. Run it with ``make demo-rocketmq``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from namesrv.engines.api import HOW_TO_GET_IT, native_problem
from namesrv_common.client.channels import check_health
from tests.support.programs.processes import BIN, NamesrvProcess, eventually
from tests.support.rocketmq_programs.maven import NEWEST, class_path, missing
from tests.support.rocketmq_programs.programs import ApacheNamesrv, Broker, Shell

TOPIC = "orders"
NAMES = ("ns-a", "ns-b", "ns-c")
"""The name servers. Each has an address of its own on loopback, as on a machine of its own."""
PORT, GRPC_PORT, BROKER_PORT = 9876, 9878, 10911
"""The ports that the page shows. A port that is in use is replaced by a free one."""
ALLOWED = ("--remoting-allow", "lookups,registrations,operators")
WARM_UP_MILLIS = 15_000
"""A third of the default. The broker registers every 10 s here, by default every 30 s."""
WIDTH = 150
WAIT_SECONDS = 60.0
CALL_SECONDS = 60.0
ROUTES = "namesrv_api.v1.RouteService"
"""The service whose health shows that a name server is warm."""


def main() -> None:
    """Runs the demo. A step that does not succeed in time ends it with an error."""
    if (problem := native_problem()) is not None:
        sys.exit(f"this demo needs the native engine: {problem}; {HOW_TO_GET_IT}")
    if (problem := missing()) is not None:
        sys.exit(problem)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        Demo(stack, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rocketmq-demo-")))).run()
    begin(f"done in {time.monotonic() - started:.0f} s; all processes have ended")


class Demo:
    """The processes of the demo, and its steps."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        """Starts nothing yet. The stack ends all processes that the steps start."""
        self._stack = stack
        self._folder = folder
        self._apache: dict[str, ApacheNamesrv] = {}
        self._ours: dict[str, NamesrvProcess] = {}

    def run(self) -> None:
        """Runs all steps in order."""
        begin(f"fetching RocketMQ {NEWEST.version} from Maven Central, unless .bench has it")
        class_path(NEWEST)
        for title, take in STEPS:
            begin(title)
            take(self)

    def before(self) -> None:
        """Starts three of Apache's name servers, a broker, a producer and a consumer."""
        for number, name in enumerate(NAMES, 1):
            host = f"127.0.0.{number}"
            self._start_apache(name, host, free(host, PORT))
        addresses = ";".join(apache.listening().addr for apache in self._apache.values())
        broker = Broker(self._folder, addresses, port=free("127.0.0.1", BROKER_PORT))
        self._broker = self._stack.enter_context(broker)
        self._broker.listening()
        self._shell = self._stack.enter_context(Shell(self._folder / "shell"))
        # An ordered topic is in the KV configuration, too.
        made = ("updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4", "-o", "true")
        eventually(lambda: "success" in self._shell.mqadmin(addresses, *made), within_seconds=WAIT_SECONDS)
        self._shell.messages("start", addresses, TOPIC)
        say(f"RocketMQ {NEWEST.version}: broker {self._broker.addr}, namesrvAddr {addresses}")
        self._progress()

    def replace_first(self) -> None:
        """Replaces the first name server."""
        self._replace(NAMES[0])

    def replace_others(self) -> None:
        """Replaces the other name servers, one after the other."""
        for name in NAMES[1:]:
            self._replace(name)

    def go_back(self) -> None:
        """Starts Apache's name server again on the address of the last one."""
        name = NAMES[-1]
        apache, ours = self._apache[name], self._ours[name]
        exported = self._folder / "kvConfig.json"
        self._nsctl("kv", "export", str(exported), names=(name,), shown=("kv", "export", "kvConfig.json"))
        assert ours.terminate() == 0
        say(f"{name} has stopped")
        exported.replace(self._home_of(name) / "kvConfig.json")
        self._start_apache(name, apache.host, apache.port)
        self._apache[name].listening()
        say(f"Apache's name server has started at {apache.addr}")
        self._show_once_equal("compare-rocketmq", apache.addr, names=NAMES[:1])
        self._progress()

    def ask_ours(self) -> None:
        """Queries the name server with mqadmin and nsctl."""
        addr, names = self._apache[NAMES[0]].addr, NAMES[:2]
        endpoints = [self._ours[name].endpoint for name in names]
        eventually(lambda: not any(check_health(one, ROUTES, 5.0) for one in endpoints), within_seconds=WAIT_SECONDS)
        self._mqadmin(addr, "topicClusterList", "-t", TOPIC)
        self._nsctl("explain", TOPIC, names=names[:1])
        self._nsctl("doctor", names=names)
        self._progress()
        say(f"producer and consumer, running since the first step: {self._shell.messages('stop').strip()}")

    def kill_broker(self) -> None:
        """Kills the broker and waits until its route is removed."""
        name = NAMES[0]
        with self._ours[name].connect() as client:
            killed_at = time.monotonic()
            self._broker.kill()
            eventually(lambda: client.route(TOPIC), lambda route: route is None, WAIT_SECONDS)
            milliseconds = (time.monotonic() - killed_at) * 1000
        say(f"broker killed with SIGKILL: its route was removed after {milliseconds:.0f} ms")
        self._nsctl("explain", TOPIC, names=(name,))

    # Details

    def _home_of(self, name: str) -> Path:
        return self._folder / f"apache-{name}"

    def _start_apache(self, name: str, host: str, port: int) -> None:
        apache = ApacheNamesrv(self._home_of(name), host=host, port=port)
        self._apache[name] = self._stack.enter_context(apache)

    def _replace(self, name: str) -> None:
        """Replaces one of Apache's name servers at its address, and compares it with another one."""
        apache = self._apache[name]
        apache.terminate()
        say(f"Apache's name server at {apache.addr} has stopped")
        data = self._folder / name
        data.mkdir()
        say("$ cp ~/namesrv/kvConfig.json /var/lib/namesrv/")
        shutil.copy(self._home_of(name) / "kvConfig.json", data)
        listen = f"{apache.host}:{free(apache.host, GRPC_PORT)}"
        flags = ("--remoting-listen", apache.addr, *ALLOWED)
        # Of two equal flags the last one wins.
        quiet = ("--listen", listen, "--data-dir", str(data), "--warm-up-millis", str(WARM_UP_MILLIS))
        namesrv = self._stack.enter_context(NamesrvProcess("--name", name, *flags, *quiet))
        self._ours[name] = namesrv
        shown = f"--listen {namesrv.endpoint} {shlex.join(flags)}"
        say(f"$ namesrv serve --name {name} --data-dir /var/lib/namesrv {shown}")
        left = [other for other in NAMES if other not in self._ours]
        if left:
            self._show_once_equal("compare-rocketmq", self._apache[left[0]].addr, names=(name,))
        else:
            self._show_once_equal("diff")
        self._progress()

    def _show_once_equal(self, *comparison: str, names: Sequence[str] = NAMES) -> None:
        """Shows a comparison once it finds no difference: the broker has registered with the new name server."""
        eventually(lambda: self._run_nsctl(comparison, names).returncode, lambda code: code == 0, WAIT_SECONDS)
        self._nsctl(*comparison, names=names)

    def _mqadmin(self, namesrv: str, command: str, *arguments: str) -> None:
        say(f"$ mqadmin {shlex.join((command, '-n', namesrv, *arguments))}")
        say(self._shell.mqadmin(namesrv, command, *arguments).strip())

    def _nsctl(self, *arguments: str, names: Sequence[str] = NAMES, shown: Sequence[str] = ()) -> None:
        """Runs a command of nsctl at these name servers, and shows it, or the words to be shown instead."""
        say(f"$ nsctl {shlex.join((*(shown or arguments), '--namesrv', self._endpoints(names)))}")
        done = self._run_nsctl(arguments, names)
        text = done.stdout.replace(f"{self._folder}/", "").strip("\n")
        say("\n".join(line.rstrip() for line in text.splitlines()))
        if done.returncode:
            say(f"# exit code {done.returncode}")

    def _run_nsctl(self, arguments: Sequence[str], names: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "nsctl"), *arguments, "--namesrv", self._endpoints(names)],
            env={**os.environ, "COLUMNS": str(WIDTH)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
        )

    def _endpoints(self, names: Sequence[str]) -> str:
        return ";".join(str(self._ours[name].endpoint) for name in names)

    def _progress(self) -> None:
        """Checks that messages still arrive."""
        self._shell.messages("progress")
        say("messages are delivered")


STEPS: tuple[tuple[str, Callable[[Demo], None]], ...] = (
    ("Before: three of Apache's name servers", Demo.before),
    ("Replace the first name server", Demo.replace_first),
    ("Replace the others", Demo.replace_others),
    ("Go back", Demo.go_back),
    ("Query this name server", Demo.ask_ours),
    ("Kill a broker", Demo.kill_broker),
)
"""The steps, each with its heading in docs/rocketmq.md."""


def begin(title: str) -> None:
    """Prints the heading of a step."""
    say(f"\n== {title}")


def say(text: str) -> None:
    """Prints a text and flushes it, because child processes write to the same terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def free(host: str, port: int) -> int:
    """Returns the port if it is free at an address of loopback, otherwise 0, which means any free port."""
    with contextlib.suppress(OSError), socket.create_server((host, port)):
        return port
    return 0


if __name__ == "__main__":
    main()
