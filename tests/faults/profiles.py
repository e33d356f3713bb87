"""Profiles of runs: how long they and their faults last, and what is said of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.history import Record, of_kind, read_history
from tests.faults.nemesis import OF_ROCKETMQ, schedule
from tests.faults.run import Pace, run


@dataclass(frozen=True)
class Profile:
    """A size of run. Times are in seconds."""

    rounds: int
    fault_seconds: tuple[float, ...]
    """What faults may last. Pings find a lost peer after 7 s, and silence counts as death after 25 s."""
    rest_seconds: tuple[float, ...]
    """What may be between two rounds; a check of what must stay needs 11 s without faults."""
    pace: Pace


PROFILES = {
    "short": Profile(rounds=5, fault_seconds=(0.5, 3.0, 9.0), rest_seconds=(0.5, 2.0, 12.0), pace=Pace()),
    "long": Profile(
        rounds=60,
        fault_seconds=(0.5, 3.0, 6.9, 7.1, 15.0, 24.0, 26.0, 60.0),
        rest_seconds=(0.5, 5.0, 15.0),
        pace=Pace(),
    ),
    "soak": Profile(  # an hour at a modest rate
        rounds=90,
        fault_seconds=(0.5, 3.0, 6.0, 15.0),
        rest_seconds=(10.0, 30.0, 60.0),
        pace=Pace(lookups=1.0, operator=5.0, topics=5.0),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    folder: Path
    seed: int
    replay: str
    """The command that lets the same faults happen again."""
    violations: list[str]
    records: list[Record]

    def report(self) -> str:
        """What to print."""
        faults = [f"{r['at']:8.1f} s  {r['name']}" for r in of_kind(self.records, "fault") if r["event"] == "begins"]
        counts = Counter(record["what"] for record in self.records)
        agreed = ", ".join(f"{record['seconds']:.1f} s" for record in of_kind(self.records, "agreed"))
        lines = [f"seed {self.seed}: {'BROKEN' if self.violations else 'all invariants hold'}", *faults]
        lines.append(f"records: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}")
        lines.append(f"name servers agreed within {agreed}")
        if self.violations:
            lines += [*self.violations[:20], f"{len(self.violations)} violations; history: {self.folder}/history.jsonl"]
            lines += [f"again: {self.replay}", f"checks: python -m tests.faults --check {self.folder}/history.jsonl"]
        return "\n".join(lines) + "\n"


def replay(seed: int, profile: str, names: Sequence[str], rounds: int) -> str:
    """The command that lets the same faults happen again."""
    faults = " ".join(names)
    return f"python -m tests.faults --seed {seed} --profile {profile} --rounds {rounds} --faults {faults}"


def run_profile(folder: Path, seed: int, profile: str, names: Sequence[str], rounds: int | None = None) -> Outcome:
    """Runs one seed; its history stays in the folder."""
    size = PROFILES[profile]
    count = rounds or size.rounds
    planned = schedule(seed, names, count, size.fault_seconds, size.rest_seconds)
    broken = run(folder, seed, planned, size.pace, rocketmq=not OF_ROCKETMQ.isdisjoint(names))
    return Outcome(folder, seed, replay(seed, profile, names, count), broken, read_history(folder / "history.jsonl"))
