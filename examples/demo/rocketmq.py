"""Replaces RocketMQ 5's name server with this one while messages flow: the steps of docs/rocketmq.md.

Name server, broker, clients and mqadmin are Apache's, from Maven Central. All processes run on loopback and end with
the demo. Only the jars stay, in ``.bench``. Run it with ``make demo-rocketmq``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from namesrv.engines.factory import HOW_TO_GET_IT, native_problem
from tests.support.programs.processes import BIN, Client, NamesrvProcess, eventually
from tests.support.rocketmq_programs.maven import NEWEST, class_path, missing
from tests.support.rocketmq_programs.programs import ApacheNamesrv, Broker, Shell

TOPIC = "orders"
APACHE_PORT, OUR_PORT, GRPC_PORT, BROKER_PORT = 9876, 9877, 9878, 10911
"""The ports that the page shows. A port that is in use is replaced by a free one."""
WIDTH = 150
TOLD_SECONDS = 60.0
CALL_SECONDS = 60.0
SETTINGS = (
    # Without these, a broker reads its list of name servers every 120 s and registers every 30 s.
    "updateNameServerAddrPeriod=2000",
    "registerNameServerPeriod=10000",
)


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

    def run(self) -> None:
        """Runs all steps in order."""
        begin(f"fetching RocketMQ {NEWEST.version} from Maven Central, unless .bench has it")
        class_path(NEWEST)
        for title, take in STEPS:
            begin(title)
            take(self)

    def before(self) -> None:
        """Starts Apache's name server, a broker, a producer and a consumer."""
        self._apache = self._stack.enter_context(ApacheNamesrv(self._folder / "apache", port=free(APACHE_PORT)))
        self._apache.wait()
        port = free(BROKER_PORT)
        broker = Broker(self._folder, self._apache.addr, settings=SETTINGS, port=port)
        self._broker = self._stack.enter_context(broker)
        self._broker.wait()
        self._shell = self._stack.enter_context(Shell(self._folder / "shell"))
        made = ("updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4")
        eventually(lambda: "success" in self._shell.mqadmin(self._apache.addr, *made), within_seconds=TOLD_SECONDS)
        self._shell.messages("start", self._apache.addr, TOPIC)
        say(f"RocketMQ {NEWEST.version}: name server {self._apache.addr}, broker {self._broker.addr}")
        self._progress()

    def start_ours(self) -> None:
        """Starts this name server."""
        listen, remoting = free(GRPC_PORT), free(OUR_PORT)
        flags = ("--remoting-listen", f"127.0.0.1:{remoting}", "--data-dir", str(self._folder / "namesrv"))
        namesrv = NamesrvProcess("--name", "ns-a", *flags, port=listen)
        self._namesrv = self._stack.enter_context(namesrv)
        self._ours = str(self._namesrv.wait_for("namesrv_started")["remoting"])
        self._client: Client = self._stack.enter_context(self._namesrv.connect())
        addresses = f"--listen {self._namesrv.endpoint} --remoting-listen {self._ours}"
        say(f"$ namesrv serve --name ns-a {addresses} --data-dir /var/lib/namesrv")
        self._progress()

    def add_ours(self) -> None:
        """Gives the broker a list of both name servers."""
        self._set_namesrv_addr(f"{self._apache.addr};{self._ours}")
        eventually(lambda: self._client.addrs(TOPIC), lambda addrs: addrs == {0: self._broker.addr}, TOLD_SECONDS)
        say("the broker has registered with both name servers, without a restart")
        self._progress()

    def compare(self) -> None:
        """Compares the routes of both name servers."""
        self._nsctl("compare-rocketmq", self._apache.addr)
        self._progress()

    def move_clients(self) -> None:
        """Stops the clients once they have received all messages, and starts clients with the new address."""
        say(f"with {self._apache.addr}: {self._shell.messages('stop').strip()}")
        self._shell.messages("start", self._ours, TOPIC)
        say(f"with {self._ours}: producer and consumer are running")
        self._progress()

    def remove_apache(self) -> None:
        """Gives the broker a list of this name server only, and stops Apache's."""
        self._set_namesrv_addr(self._ours)
        self._apache.terminate()
        self._apache.wait_for_end()
        say("Apache's name server has stopped")
        self._progress()

    def ask_ours(self) -> None:
        """Queries the name server with mqadmin and nsctl."""
        self._mqadmin(self._ours, "topicRoute", "-t", TOPIC)
        self._mqadmin(self._ours, "topicClusterList", "-t", TOPIC)
        self._nsctl("explain", TOPIC)
        self._nsctl("doctor")
        self._progress()
        say(f"with {self._ours}: {self._shell.messages('stop').strip()}")

    def kill_broker(self) -> None:
        """Kills the broker and waits until its route is removed."""
        killed_at = time.monotonic()
        self._broker.kill()
        eventually(lambda: self._client.route(TOPIC), lambda route: route is None, TOLD_SECONDS)
        say(f"broker killed with SIGKILL: its route was removed after {(time.monotonic() - killed_at) * 1000:.0f} ms")
        self._nsctl("explain", TOPIC)

    # Details

    def _set_namesrv_addr(self, namesrv: str) -> None:
        where = ("-b", self._broker.addr)
        self._mqadmin(self._apache.addr, "updateBrokerConfig", *where, "-k", "namesrvAddr", "-v", namesrv)

    def _mqadmin(self, namesrv: str, command: str, *arguments: str) -> None:
        say(f"$ mqadmin {shlex.join((command, '-n', namesrv, *arguments))}")
        say(self._shell.mqadmin(namesrv, command, *arguments).strip())

    def _nsctl(self, *arguments: str) -> None:
        words = [*arguments, "--namesrv", str(self._namesrv.endpoint)]
        say(f"$ nsctl {shlex.join(words)}")
        environment = {**os.environ, "COLUMNS": str(WIDTH)}
        done = subprocess.run(
            [str(BIN / "nsctl"), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
        )
        say("\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()))
        if done.returncode:
            say(f"# exit code {done.returncode}")

    def _progress(self) -> None:
        """Checks that messages still arrive."""
        self._shell.messages("progress")
        say("messages are delivered")


STEPS: tuple[tuple[str, Callable[[Demo], None]], ...] = (
    ("Before: only Apache's name server", Demo.before),
    ("Start this name server", Demo.start_ours),
    ("Add this name server to the brokers' namesrvAddr", Demo.add_ours),
    ("Compare both name servers", Demo.compare),
    ("Move the clients", Demo.move_clients),
    ("Remove Apache's name server", Demo.remove_apache),
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


def free(port: int) -> int:
    """Returns the port if it is free on loopback, otherwise 0, which means any free port."""
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return port
    return 0


if __name__ == "__main__":
    main()
