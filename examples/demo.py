"""Caption a video with the embedded model, and look at what comes out.

    python examples/demo.py [VIDEO] [--view]

Without a video it takes the sample beside this file and scores the answer against its reference.
Writes JSON, WebVTT and a page with everything on one time axis into out/, and says how to look at
them; with --view, and in a terminal, it opens the page itself and stays until Ctrl-C.
"""

from __future__ import annotations

import sys
from pathlib import Path

import starc
from starc.cli.progress import stages
from starc.errors import StarcError
from starc.evaluation import score
from starc.files.annotations import VideoAnnotation, read_references
from starc.output import formats

HERE = Path(__file__).parent
SAMPLE = HERE / "scrambled_eggs.mp4"
OUT = Path("out")


def main() -> None:
    """The whole demonstration."""
    given = [one for one in sys.argv[1:] if one and one != "--view"]
    video = Path(given[0]) if given else SAMPLE
    print(f"Captioning {video} with the embedded model starc-small-youcook2 ...", flush=True)
    with stages() as on_progress:
        captioned = starc.load().caption(video, on_progress=on_progress)
    for event in captioned.events:
        sure = "" if event.confidence is None else f"   {event.confidence:4.0%} sure"
        print(f"  {clock(event.start)} - {clock(event.end)}  {event.caption}{sure}")
    if not captioned.events:
        print("  No step was found. The model knows kitchens, and leans on what is said.")
    if video == SAMPLE:
        print(judged(captioned))
    OUT.mkdir(exist_ok=True)
    for ending in (".json", ".vtt", ".html"):
        formats.write(captioned, OUT / f"{video.stem}{ending}", overwrite=True, source=video)
    record = OUT / f"{video.stem}.json"
    print(f"\nWritten: {record}, .vtt and .html. To go on:")
    print("  make demo VIDEO=my.mp4, or .venv/bin/starc caption my.mp4 -o my.srt")
    if "--view" in sys.argv and sys.stdout.isatty():
        view(record)
    else:
        print(f"  .venv/bin/starc view {record}, or make demo VIEW=1: see what each caption")
        print("  rests on, and correct it in the browser")
        print("The page with the video and its captions, to look at and to send to others:")
        print(f"  {record.with_suffix('.html').resolve().as_uri()}")


def view(record: Path) -> None:
    """The page of this one video, until Ctrl-C."""
    from starc.viewer.server import serve

    print("The page with this video (Ctrl-C ends it):")
    serve([record], port=0, announce=lambda address: print(f"  {address}", flush=True))


def judged(captioned: starc.Captioned) -> str:
    """One line: scores against the sample's reference."""
    references = read_references(SAMPLE.with_suffix(".json"))
    said = VideoAnnotation(
        tuple((event.start, event.end) for event in captioned.events),
        tuple(event.caption for event in captioned.events),
        captioned.duration,
    )
    # METEOR and SODA_c would need an extra and half a minute: starc score has them.
    metrics = score({SAMPLE.stem: said}, references, metrics=["localisation"]).metrics
    shown = ("F1", "Precision", "Recall")
    return "Against the reference: " + ", ".join(f"{k} {100 * metrics[k]:.1f}" for k in shown)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


if __name__ == "__main__":
    try:
        main()
    except StarcError as error:
        sys.exit(str(error))
