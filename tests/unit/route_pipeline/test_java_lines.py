"""The cause that Java gives where Spark does not start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.programs.processes import BIN

TRACE = r"""Exception in thread "main" java.lang.RuntimeException: no start
	at org.example.Main.main(Main.java:1)
Caused by: java.net.UnknownHostException: nowhere: Name or service not known"""

PROGRAM = f"""#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "21"' >&2 && exit
cat >&2 <<'END'
{TRACE}
END
exit 1
"""


def test_the_last_line_of_a_failed_start_is_javas_innermost_cause(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(PROGRAM)
    java.chmod(0o755)
    said = subprocess.run(
        [BIN / "route-pipeline", "ingest", "--namesrv", "127.0.0.1:1", "--out", str(tmp_path / "log")],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = said.stderr.splitlines()
    assert said.returncode == 2
    assert TRACE.splitlines()[0] in lines
    assert lines[-1] == (
        "route-pipeline: Spark did not start on local[*]: "
        "java.net.UnknownHostException: nowhere: Name or service not known"
    )
