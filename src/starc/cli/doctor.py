"""What is installed, which extras work, what is missing and the command that adds it.

Looks only at what is there: imports nothing heavy, downloads nothing, changes nothing.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from starc.cli.progress import out, print_json
from starc.files.cache import cache_folder

EXTRAS = {
    "clip": "CLIP, the encoder of the paper",
    "text": "the embedded text encoder, for new datastores",
    "train": "training",
    "whisper": "speech recognition with Whisper",
    "url": "videos at an address, through yt-dlp",
    "viewer": "the page to watch and correct",
    "ray": "many machines",
    "faiss": "datastores above a million captions",
    "qdrant": "a datastore shared by several machines",
    "plots": "figures",
    "tensorboard": "training curves",
    "wandb": "training curves on a server",
    "hdf5": "features in HDF5 files",
}


class Finding(NamedTuple):
    name: str
    ok: bool
    found: str
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Everything worth knowing, core first."""
    yield Finding("python", True, platform.python_version())
    needed: dict[str, list[str]] = {}
    for line in requires("starc") or []:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        name = re.split(r"[ <>=!~;\[(]", line, maxsplit=1)[0]
        needed.setdefault(extra[1] if extra else "core", []).append(name)
    for name in needed["core"]:
        installed = _version(name)
        yield Finding(name, installed is not None, installed or "missing", f"pip install {name}")
    for extra_name, purpose in EXTRAS.items():
        names = [name for name in needed.get(extra_name, ()) if name != "starc"]
        missing = [name for name in names if _version(name) is None]
        state = f"without {', '.join(missing)}" if missing else "installed"
        advice = f"pip install 'starc[{extra_name}]'"
        yield Finding(f"[{extra_name}]", not missing, f"{state} · {purpose}", advice)
    built = importlib.util.find_spec("starc_eval._meteor") is not None
    state = "C extension built" if built else "pure Python (the same numbers, slower)"
    compiler = shutil.which("cc") or shutil.which("gcc")
    advice = "" if compiler else "install a C compiler (Debian: apt-get install gcc), then "
    direct = distribution("starc-eval").read_text("direct_url.json") or ""
    source = "-e packages/starc-eval" if '"editable": true' in direct else "starc-eval"
    advice += f"pip install --force-reinstall --no-deps {source}"
    yield Finding("fast METEOR", built, state, advice)
    # The paraphrase index is made by the first score; its absence is no fault.
    folder = cache_folder()
    files = sorted(folder.glob("meteor-*.index")) if folder.is_dir() else []
    size = sum(file.stat().st_size for file in files) / 1e6
    state = f"{size:.0f} MB in {folder}" if files else "not built yet; the first score builds it"
    yield Finding("METEOR index", True, state)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell what is installed, what is missing, and the command that adds it."""
    if as_json:
        return print_json([finding._asdict() for finding in examine()])
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, ok, state, advice in examine():
        mark = "[green]✓[/green]" if ok else "[yellow]–[/yellow]"
        cure = "" if ok else f"[dim]→ {advice}[/dim]".replace("starc[", r"starc\[")
        table.add_row(mark, name.replace("[", r"\["), state, cure)
    out.print(table)
