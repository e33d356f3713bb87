"""This name server compared with others, with the same load: ``python -m bench.peers``.

All servers are measured in turn within each round, so that ratios are of the same minute of the same machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from bench.figures import Figure, parser, progress, report, summarise
from bench.peers import generator
from bench.peers.generator import NotMeasured
from bench.peers.measure import RATE, Effort, measure, ratio_of
from bench.peers.servers import HALF_CACHE, JAVA, NATIVE, NO_CACHE, NULL, SERVERS
from bench.peers.workloads import all_workloads

_QUICK = ("lookups", "heartbeats")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    options = parser("peers", __doc__)
    options.add_argument("--workload", action="append", choices=all_workloads(), help="may be given again")
    options.add_argument(
        "--server", action="append", choices=(*SERVERS, HALF_CACHE, NO_CACHE), help="may be given again"
    )
    options.add_argument("--quick", action="store_true", help=f"only {' and '.join(_QUICK)}")
    given = options.parse_args(arguments)
    effort = Effort(given.rounds)
    names, servers = given.workload or (_QUICK if given.quick else (*all_workloads(),)), given.server or SERVERS
    if given.smoke:
        names, servers, effort = ("lookups", "storm"), (NATIVE, NULL), Effort(1, 0.3, 0.0, 0.01)
        os.environ[generator.PROFILE] = generator.TRIAL
    known = all_workloads(effort.scale)
    figures: list[Figure] = []
    try:
        generator.program()
        for name in names:
            figures += summarise(measure([known[name]], servers, effort))
    except NotMeasured as error:
        raise SystemExit(f"peers: {error}") from None
    values = {(figure.workload, figure.name): figure.values for figure in figures}
    for title, name in [*values]:
        workload, _, server = title.partition(": ")
        if name.startswith(RATE) and server != JAVA and (ratios := ratio_of(values, workload, server, name)[1]):
            figures.append(Figure(f"{workload}: {server} compared with {JAVA}", name, "times", ratios))
    report(given, figures)
    if not figures:
        progress("peers: no server can run here")


if __name__ == "__main__":
    main()
