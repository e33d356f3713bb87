"""A broker that is RocketMQ's own program, as a process of the fleet: from its jars, with the topics of a file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.programs.processes import Process
from tests.support.rocketmq_programs.maven import Release
from tests.support.rocketmq_programs.programs import Launch, launch_of_broker, topics_file_of

SETTINGS = (
    # A name server that cannot be reached blocks the next registration with all others for so long.
    "registerBrokerTimeoutMills=2000",
)
START_SECONDS = 180.0
"""Until it serves, on a busy machine."""
END_SECONDS = 60.0
"""Until it has ended once it is asked to."""
_SERVES = "boot success"


def launch(
    home: Path, group: str, broker_id: int, port: int, *, release: Release, topics: Path, namesrvs: Sequence[str]
) -> Launch:
    """How to start it on a folder of its own; what it says goes to standard error, as what our programs say.

    Args:
        home: Its folder, which it may have had before.
        group: Its group.
        broker_id: 0 for the master.
        port: Where it takes connections.
        release: Which RocketMQ.
        topics: The topics that it is to have, a topics.json. It reads them once, as it starts.
        namesrvs: The name servers, each HOST:PORT.
    """
    file = topics_file_of(home)
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(topics, file)
    command, environment = launch_of_broker(
        home, ";".join(namesrvs), group, broker_id, port, release=release, settings=SETTINGS
    )
    return Launch(["sh", "-c", 'exec "$@" >&2', "sh", *command], environment)


def wait_until_it_serves(process: Process) -> None:
    """Waits until it has registered with the name servers that it reaches, and takes connections."""
    process.wait_for_text(_SERVES, START_SECONDS)
