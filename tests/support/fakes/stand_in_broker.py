"""A broker as its agent sees it from outside: a process that listens. Run as a program by the tests.

It logs one JSON line when it listens, as our own programs do, and ends with its parent's signal.
"""

from __future__ import annotations

import json
import socket
import sys


def main(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
        line = {"event": "broker_started", "listen": listen}
        sys.stderr.write(json.dumps(line) + "\n")
        sys.stderr.flush()
        while True:
            connection, _ = listener.accept()
            connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
