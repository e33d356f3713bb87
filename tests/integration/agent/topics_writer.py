"""A broker that rewrites its topics.json again and again, in every way that brokers do, torn writes included.

Run as a program by the tests: the path, how many times. The last table is written twice the same way, whole.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

PAUSE_SECONDS = 0.02
"""Between two tables; within a torn one half of it."""


def table(number: int) -> str:
    """Table number so and so: topics come, change and go."""
    topics = {}
    for i in range(50 + number % 7):
        name = f"Topic{i:03}" if i % 5 else f"Topic{i:03}-{number % 3}"
        topics[name] = {
            "order": False,
            "perm": 6,
            "readQueueNums": 1 + (number + i) % 16,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": 1 + (number + i) % 16,
        }
    version = {"counter": number, "timestamp": 1_651_398_321_850 + number}
    return json.dumps({"dataVersion": version, "topicConfigTable": topics}, indent="\t")


def as_registered(text: str) -> dict[str, tuple[int, int, int]]:
    """What a name server should hold of a topics.json: read queues, write queues and permission of each topic."""
    topics = json.loads(text)["topicConfigTable"]
    return {name: (topic["readQueueNums"], topic["writeQueueNums"], topic["perm"]) for name, topic in topics.items()}


def write(path: Path, text: str, way: int) -> None:
    """In place, in place and in two halves, by renaming, or by removing it first."""
    if way == 0:
        path.write_text(text)
    elif way == 1:
        with path.open("w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            os.fsync(file.fileno())
            threading.Event().wait(PAUSE_SECONDS / 2)
            file.write(text[len(text) // 2 :])
    elif way == 2:
        fresh = path.with_name(path.name + ".tmp")
        fresh.write_text(text)
        fresh.rename(path)
    else:
        path.unlink(missing_ok=True)
        threading.Event().wait(PAUSE_SECONDS / 2)
        path.write_text(text)


def main(path: Path, times: int) -> None:
    for number in range(1, times + 1):
        write(path, table(number), number % 4)
        threading.Event().wait(PAUSE_SECONDS)
    sys.stderr.write(json.dumps({"event": "topics_written", "times": times}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
