"""What a user names beside files: standard input and addresses, as files on this machine.

A temporary folder holds them while they are captioned (`scratch_folder`). Standard input is copied
up to the limit of a file's size. An address (http, https) is fetched by yt-dlp, as a module or a
program, with its subtitles beside it; it is started without a shell and without the user's
configuration.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from starc.errors import ConfigError, MissingExtra, StarcError, VideoError
from starc.files.scratch import scratch_folder
from starc.media.container import MediaLimits
from starc.media.subtitles import SUFFIXES

STDIN = "-"
PIECE = 2**20
PICTURES = "b[height<=720]/b/bv*+ba"
"""The model sees pictures of 224 px; one file with both needs no ffmpeg to join them."""


@contextmanager
def local_files(
    inputs: Sequence[str],
    limits: MediaLimits | None = None,
    *,
    language: str | None = None,
    on_fetch: Callable[[str], None] = lambda address: None,
) -> Iterator[list[Path]]:
    """Paths for all inputs; what had to be fetched is gone when the block ends.

    `on_fetch` hears of each address before it is fetched.
    """
    limits = limits or MediaLimits()
    with scratch_folder() as folder:
        paths = []
        for n, given in enumerate(inputs):
            if given == STDIN:
                if inputs.count(STDIN) > 1:
                    raise ConfigError("-: standard input can be read once; name it once")
                paths.append(
                    copied(cast(BufferedIOBase, sys.stdin.buffer), folder / "stdin", limits)
                )
            elif "://" in given:
                _check_address(given)
                on_fetch(given)
                place = folder / str(n)
                place.mkdir()
                paths.append(fetched(given, place, limits, language=language))
            else:
                paths.append(Path(given))
        yield paths


def check_local(path: str | Path) -> Path:
    """The path of a file on this machine; an address or a file that is absent is one clear error.

    For callers that take one file and fetch nothing.
    """
    given = str(path)
    if address := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])", given):
        shown = f"{address[1]}://{given[address.end() :]}"  # Path("https://a") is https:/a
        raise VideoError(
            f"{shown}: is an address, and only files are read here; starc caption fetches it, "
            "in Python starc.media.sources.local_files"
        )
    if given == STDIN:
        raise VideoError("-: standard input is read only by the command; name a file")
    if not Path(path).exists():
        raise VideoError(f"{given}: no such file; check the path")
    return Path(path)


def copied(stream: BufferedIOBase, path: Path, limits: MediaLimits) -> Path:
    """A stream as a file, no larger than the limit."""
    if stream.isatty():
        raise ConfigError("-: standard input is a terminal; pipe a video: cat talk.mp4 | starc …")
    size = 0
    try:
        with path.open("wb") as file:
            while piece := stream.read1(PIECE):  # comes back for a signal, `read` may not
                size += len(piece)
                what, enough = f"more than {limits.file_bytes} bytes", 2 * size
                limits.check(Path(STDIN), "file_bytes", size, what, enough=enough)
                file.write(piece)
    except OSError as error:
        raise StarcError(f"-: cannot be copied to {path.parent} ({error.strerror})") from error
    if not size:
        raise VideoError("-: nothing came on standard input; pipe a video: cat talk.mp4 | starc …")
    return path


def fetched(
    address: str, folder: Path, limits: MediaLimits, *, language: str | None = None
) -> Path:
    """The video at an address, its subtitles beside it in `folder`."""
    command = [
        *_yt_dlp(), "--ignore-config", "--no-playlist", "--playlist-items", "1", "--quiet",
        "--no-warnings", "--no-progress", "--format", PICTURES,
        "--max-filesize", str(limits.file_bytes), "--write-subs", "--write-auto-subs",
        "--sub-langs", f"{re.escape(language or 'en')}(-[A-Z][A-Z]|-orig)?",
        "--sub-format", "vtt/srt/best", "--paths", str(folder),
        "--output", "%(title).80B [%(id)s].%(ext)s", "--", address,
    ]  # fmt: skip
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limits.wall
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "it takes too long; --limit wall=SECONDS" if not isinstance(error, OSError) else ""
        raise VideoError(f"{address}: cannot be fetched ({reason or error})") from error
    videos = [path for path in folder.iterdir() if path.suffix.lower() not in SUFFIXES]
    if len(videos) == 1 and videos[0].suffix != ".part":
        return videos[0]  # its subtitles may have failed: they are welcome, not needed
    said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    reason = said[-1].removeprefix("ERROR: ") if said else f"no file of {limits.file_bytes} bytes"
    raise VideoError(f"{address}: yt-dlp did not get it ({reason}); check the address")


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        wrong = parts.scheme.lower() not in ("http", "https") or not parts.hostname
    except ValueError:
        wrong = True
    if wrong:
        raise ConfigError(f"{address}: not an address that can be fetched; it begins with https://")


def _yt_dlp() -> list[str]:
    if importlib.util.find_spec("yt_dlp") is not None:
        return [sys.executable, "-m", "yt_dlp"]
    program = shutil.which("yt-dlp")
    if program is None:
        raise MissingExtra("yt-dlp", "url")
    return [program]
