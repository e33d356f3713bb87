"""The other files of a release: contract, clients, chart, bill of materials, notes and checksums.

The repository has everything that they are made of, so no network is needed.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

from namesrv_common.version import __version__
from release.engine import REPOSITORY, run

CLIENTS = ("go", "java")
"""Client modules in clients/ of languages other than Python."""
EXTRAS = ("namesrv", "broker-agent", "nsctl", "console", "otel", "route-pipeline", "spark")
"""Extras whose packages the bill of materials lists."""
INTERNAL = str(REPOSITORY / "protos/namesrv_internal")
"""Calls between programs of this project, which are no part of the contract."""
CHECKSUMS = "SHA256SUMS"


class DistributionError(Exception):
    """A part of the release could not be made, or is not as it must be; the text says which and why."""


def bundle(folder: Path) -> list[Path]:
    """Makes these files in a folder, the checksums last. Raises DistributionError and CommandError."""
    made = [descriptor_set(folder), chart(folder), *client_modules(folder), bill_of_materials(folder), notes(folder)]
    return [*made, checksums(folder)]


def descriptor_set(folder: Path) -> Path:
    """The contract for tools that read no .proto files, such as gateways and grpcurl: a FileDescriptorSet."""
    target = folder / f"namesrv-protos-{__version__}.binpb"
    buf = Path(sys.executable).with_name("buf")
    run([str(buf), "build", str(REPOSITORY / "protos"), "--exclude-path", INTERNAL, f"--output={target}"], timeout=120)
    return target


def chart(folder: Path) -> Path:
    """The Helm chart as ``helm install`` takes it: its files below a folder of its name."""
    source = REPOSITORY / "deploy/helm"
    return _archive(folder / f"namesrv-helm-{__version__}.tgz", source, "namesrv")


def client_modules(folder: Path) -> list[Path]:
    """The sources of each client module, with the contract that it is generated from."""
    modules = []
    for language in CLIENTS:
        name = f"namesrv-client-{language}-{__version__}"
        modules.append(_archive(folder / f"{name}.tar.gz", REPOSITORY / "clients" / language, name))
    return modules


def bill_of_materials(folder: Path) -> Path:
    """All packages of Python and Rust that the wheels bring, with versions and checksums, as CycloneDX."""
    extras = [f"--extra={extra}" for extra in EXTRAS]
    export = [sys.executable, "-m", "uv", "export", "--quiet", "--frozen", "--no-dev", "--format=cyclonedx1.5"]
    bill = json.loads(run([*export, f"--project={REPOSITORY}", *extras], timeout=120))
    bill["metadata"]["component"]["version"] = __version__
    locked = tomllib.loads((REPOSITORY / "engine/Cargo.lock").read_text(encoding="utf-8"))["package"]
    for crate in locked:
        name, version = crate["name"], crate["version"]
        purl = f"pkg:cargo/{name}@{version}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        if "checksum" in crate:  # the engine itself and its vendored h2 have none
            component["hashes"] = [{"alg": "SHA-256", "content": crate["checksum"]}]
        bill["components"].append(component)
    target = folder / f"namesrv-{__version__}.cdx.json"
    target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    return target


def notes(folder: Path) -> Path:
    """The section of CHANGELOG.md about this version."""
    sections = re.split(r"^(?=## )", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [section for section in sections if __version__ in section.partition("\n")[0]]
    if len(found) != 1:
        raise DistributionError(f"CHANGELOG.md has {len(found)} sections about {__version__}")
    target = folder / f"release-notes-{__version__}.md"
    target.write_text(found[0].rstrip() + "\n", encoding="utf-8")
    return target


def checksums(folder: Path) -> Path:
    """SHA-256 of every other file, as ``sha256sum --check`` reads them."""
    target = folder / CHECKSUMS
    files = sorted(path for path in folder.iterdir() if path.is_file() and path != target)
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    target.write_text("".join(lines), encoding="utf-8")
    return target


def _archive(target: Path, source: Path, name: str) -> Path:
    """Packs the files that git tracks below a folder, with what its links point to; without a clone, all files."""
    listed = subprocess.run(["git", "-C", source, "ls-files"], capture_output=True, text=True, check=False).stdout
    files = listed.split("\n")[:-1] or [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    if not files:
        raise DistributionError(f"{source.relative_to(REPOSITORY)} has no files")
    with tarfile.open(target, "w:gz", dereference=True) as archive:
        for file in sorted(files):
            archive.add(source / file, f"{name}/{file}")
    return target
