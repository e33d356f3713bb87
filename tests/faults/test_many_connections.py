"""Many connections at once: others are served beside them, each takes little, and a server that ends tells all of them.

``python -m tests.faults.load.many`` does it with 10,000.
"""

from __future__ import annotations

import os

import pytest

from tests.faults.load.many import as_many_as_fit, idle_and_drained

CONNECTIONS = int(os.environ.get("FAULTS_CONNECTIONS", "1000"))
SECONDS = 2.0
MOST_KIBIBYTES = 48
"""Of a connection: buffers for reading and writing, and a watch on each tenth."""
GRACE_SECONDS = 5.0
"""What a name server gives calls under way at its end, by default."""
END_SECONDS = 25.0
"""What comes beside: the first steps of the end, connections that will not go by themselves, and a busy machine."""


@pytest.mark.timeout(400)
def test_idle_connections_are_in_nobodys_way_and_all_are_told_of_the_end() -> None:
    count = as_many_as_fit(CONNECTIONS)
    idle, drained = idle_and_drained(count, SECONDS)
    assert idle.load.errors == []
    assert idle.load.seconds
    assert idle.kibibytes_each < MOST_KIBIBYTES
    assert drained.exit_code == 0
    assert drained.told_to_go == count
    assert drained.calls_ended == drained.calls > 0
    assert drained.seconds < GRACE_SECONDS + END_SECONDS
