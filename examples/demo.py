"""Caption a video with the embedded model, and look at what comes out.

    python examples/demo.py [VIDEO]

Without a video it takes the sample beside this file and scores the answer against its reference.
Writes JSON, WebVTT and a page with everything on one time axis into out/. In a terminal it ends
with the address of the viewer, which shows them until Ctrl-C; elsewhere it says how to get there.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import starc
from starc.cli.progress import stages
from starc.errors import StarcError
from starc.output import formats
from starc_eval import score
from starc_eval.annotations import VideoAnnotation, read_references

HERE = Path(__file__).parent
SAMPLE = HERE / "scrambled_eggs.mp4"
OUT = Path("out")


def main() -> None:
    """The whole demonstration."""
    given = next((one for one in sys.argv[1:] if one), None)
    video = Path(given) if given else SAMPLE
    print(f"Captioning {video} with the embedded model starc-small-youcook2 ...", flush=True)
    with stages() as on_progress:
        captioned = starc.load().caption(video, on_progress=on_progress)
    for event in captioned.events:
        sure = "" if event.confidence is None else f"   {event.confidence:4.0%} sure"
        print(f"  {clock(event.start)} - {clock(event.end)}  {event.caption}{sure}")
    if not captioned.events:
        print(f"  Not captioned: {captioned.reason or 'no step was found.'}")
    if video == SAMPLE:
        print(judged(captioned))
    OUT.mkdir(exist_ok=True)
    for ending in (".json", ".vtt", ".html"):
        formats.write(captioned, OUT / f"{video.stem}{ending}", overwrite=True, source=video)
    record = OUT / f"{video.stem}.json"
    print(f"\nWritten: {record}, .vtt and .html. To go on:")
    print("  make demo VIDEO=my.mp4, or .venv/bin/starc caption my.mp4 -o my.srt")
    print("A page to look at and to send to others, with the video beside it:")
    print(f"  {record.with_suffix('.html').resolve().as_uri()}")
    print("Watch it, see what each caption was made from, and correct it in the browser:")
    if not sys.stdout.isatty() or not view(record):
        print(f"  .venv/bin/starc view {record}")


def view(record: Path) -> bool:
    """The page of this one video, until Ctrl-C; False if the viewer is not installed."""
    try:
        from starc.viewer.server import serve
    except ImportError:
        return False
    with suppress(KeyboardInterrupt):
        print("(Ctrl-C ends it)")
        serve([record], port=0, announce=lambda address: print(f"  {address}", flush=True))
    return True


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
