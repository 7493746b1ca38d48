"""What is installed, which extras work, what is missing and the command that adds it.

Looks only at what is there: imports nothing heavy, downloads nothing, changes nothing.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from typing import Annotated

import typer
from rich.table import Table

from starc.cli.progress import out, print_json
from starc.files.cache import cache_folder

EXTRAS = {
    "clip": "CLIP, the encoder of the paper",
    "text": "the embedded text encoder, for new datastores",
    "train": "training",
    "eval": "METEOR and SODA_c in `starc score`",
    "whisper": "speech recognition with Whisper",
    "viewer": "the page to watch and correct",
    "ray": "many machines",
    "faiss": "datastores above a million captions",
    "qdrant": "a datastore shared by several machines",
    "plots": "figures",
    "tensorboard": "training curves",
    "hdf5": "features in HDF5 files",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Everything worth knowing, core first."""
    return [
        Finding("python", True, platform.python_version()),
        *_core(),
        *_extras(),
        _extension(),
        _index(),
    ]


def _requirements() -> Iterator[tuple[str, str | None]]:
    """(package, extra or None) for each requirement of ours."""
    for line in requires("starc") or []:
        name = re.split(r"[ <>=!~;\[(]", line, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        yield name, extra.group(1) if extra else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _core() -> Iterator[Finding]:
    for name, extra in _requirements():
        if extra is None:
            found = _version(name)
            yield Finding(name, found is not None, found or "missing", f"pip install {name}")


def _extras() -> Iterator[Finding]:
    for extra, purpose in EXTRAS.items():
        wanted = [name for name, of in _requirements() if of == extra and name != "starc"]
        missing = [name for name in wanted if _version(name) is None]
        found = f"without {', '.join(missing)}" if missing else "installed"
        yield Finding(
            f"[{extra}]", not missing, f"{found} · {purpose}", f"pip install 'starc[{extra}]'"
        )


def _extension() -> Finding:
    built = importlib.util.find_spec("starc.evaluation._meteor") is not None
    compiler = shutil.which("cc") or shutil.which("gcc")
    advice = "" if compiler else "install a C compiler (Debian: apt-get install gcc), then "
    return Finding(
        "fast METEOR",
        built,
        "C extension built" if built else "pure Python (the same numbers, slower)",
        f"{advice}pip install --force-reinstall --no-deps {_source()}",
    )


def _source() -> str:
    """What to give pip to install us again."""
    direct = distribution("starc").read_text("direct_url.json")
    return "-e ." if direct and '"editable": true' in direct else "starc"


def _index() -> Finding:
    """The paraphrase index is made by the first score; its absence is no fault."""
    folder = cache_folder()
    files = sorted(folder.glob("meteor-*.index")) if folder.is_dir() else []
    size = sum(file.stat().st_size for file in files) / 1e6
    found = f"{size:.0f} MB in {folder}" if files else "not built yet; the first score builds it"
    return Finding("METEOR index", True, found)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell what is installed, what is missing, and the command that adds it."""
    findings = examine()
    if as_json:
        return print_json([asdict(finding) for finding in findings])
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        mark = "[green]✓[/green]" if finding.ok else "[yellow]–[/yellow]"
        advice = "" if finding.ok else f"[dim]→ {finding.advice}[/dim]"
        table.add_row(
            mark,
            finding.name.replace("[", r"\["),
            finding.found,
            advice.replace("starc[", r"starc\["),
        )
    out.print(table)
