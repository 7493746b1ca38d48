"""`starc view`: the page on which captions are watched, checked and corrected."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starc.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from starc.inference.pipeline import Captioner
    from starc.types import Captioned
    from starc.viewer.jobs import Caption, Progress


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="What to show: captioned JSON files, videos, or folders of them. Captions and "
            "their videos may lie in different folders."
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Network address to listen on. The default can be reached from this machine "
            "only; 0.0.0.0 opens the page to the network, for visitors who have the token."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8350,
    token: Annotated[
        str | None,
        typer.Option(
            help="File of yours alone (mode 600) with the secret that visitors need, 8 characters "
            "or more; it may also be in STARC_TOKEN. Otherwise it is a random one, which is part "
            "of the address that is printed and opened; none does without, on a machine that is "
            "yours alone."
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Annotation file (or folder of captioned JSON) with the true events; every "
            "prediction is shown with its best match and their overlap."
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            help="Prediction file or folder of captioned JSON of a second system, to show next to "
            "the first."
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Model folder or hub id with which videos can be captioned from the page; "
            "embedded is the small one in the package, none leaves captioning out."
        ),
    ] = "embedded",
    browser: Annotated[bool, typer.Option(help="Open the page in a web browser.")] = True,
) -> None:
    """Watch, check and correct captions in a web page served from this machine until Ctrl-C."""
    try:
        from starc.viewer.server import serve
    except ModuleNotFoundError:
        raise MissingExtra("the viewer", "viewer") from None
    from starc.output.formats import FORMATS, render
    from starc.viewer.edits import EXPORTS, Export

    def export(name: str) -> Export:
        return Export(FORMATS[name].ending[1:], lambda made: render(made, format=name)[0])

    written = [name for name, kind in FORMATS.items() if kind.render and name not in EXPORTS]
    caption, anyway = (None, None) if model == "none" else captioning(model)
    serve(
        paths,
        host=host,
        port=port,
        token=read_token(token),
        announce=lambda address: typer.echo(f"starc: {address}", err=True),
        open_browser=browser,
        caption=caption,
        caption_anyway=anyway,
        exports={name: export(name) for name in written},
        reference=reference,
        compare=compare,
    )


def read_token(given: str | None) -> str | None:
    """The secret in a file, or in STARC_TOKEN; every user of a machine can read command lines."""
    from starc.viewer.server import NO_TOKEN, check_token
    from starc_eval.reading import read_text

    if given == NO_TOKEN:
        return given
    if given is None:
        token = os.environ.get("STARC_TOKEN", "")
        return check_token(token) if token else None
    path = Path(given)
    if not path.is_file():
        raise ConfigError(
            "--token: names no file; put the secret into one that only you can read, or into "
            "STARC_TOKEN: other users can read a command line"
        )
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"--token: other users may read {path}; chmod 600 {path}")
    return check_token(read_text(path).strip())


def captioning(model: str) -> tuple[Caption, Caption]:
    """With these the page captions a video, and stops when it is cancelled.

    The second also captions what the first declines. They share the model, which is loaded when
    it is first asked for: most who open the page only look.
    """

    @functools.cache
    def captioner() -> Captioner:
        from starc.inference.pipeline import Captioner

        return Captioner(model)

    def caption(
        path: Path, progress: Progress, cancelled: Callable[[], bool], *, force: bool = False
    ) -> Captioned:
        def on_progress(stage: str, done: float, total: float) -> None:
            progress(stage, done / total if total else 0.0, seen(stage, done, total))

        stop = Cancelled(cancelled)
        return captioner().caption(path, force=force, stop=stop, on_progress=on_progress)

    return caption, functools.partial(caption, force=True)


def seen(stage: str, done: float, total: float) -> str:
    """How far a stage is, in its own unit."""
    unit = {"watching": "frames seen", "listening": "s heard"}.get(stage)
    if unit is None or not done:
        return ""
    return f"{done:.0f} of {total:.0f} {unit}" if total else f"{done:.0f} {unit}"


class Cancelled(threading.Event):
    """An event that is also set when somebody else says so."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        super().__init__()
        self._asked = asked

    def is_set(self) -> bool:
        return self._asked() or super().is_set()
