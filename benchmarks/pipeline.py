"""From file to captions: the sample, an hour; decoding, overlap of stages, cache, memory.

    python benchmarks/pipeline.py [--full | --quick]
        [--only sample hour threads decoding overlap cache memory]

The sample is examples/scrambled_eggs.mp4 with the embedded model, as one runs it: `starc caption`
as a process of its own, on the machine as it is and beside one busy process per core. A table says
what it costs with an empty cache (cold), when only the model has to work since features and speech
are kept (warm: the same video, another search), and when the answer itself is kept. An hour is a
generated film with noise for sound. Memory is the most that it and its children held together.

The other claims are one JSON line each. In them encoders are those inside packages, the model has
random weights at T5-small size, and all videos are made here. Decoding is compared with the
`ffmpeg` program and the same filters, in CPU seconds; overlap and cache in wall seconds, best of
two, since they are about time that passes; memory is the peak of a process of its own, less what it
held with the models loaded. `--full` takes more videos for overlap, a longer film for decoding and
two hours for memory.

Overlap compares one way of working with three: each video through all stages before the next one,
with as many threads as a user has by default; the same with one thread; and by default threads in
fours, whose stages still follow each other but whose decoding is shared. `others_cpu_s` is what the
rest of the machine took meanwhile: where that is not near zero, the ratios mean little.

Threads is the sample with an empty cache again: as a user runs it, with one thread, and with
threads that spin while they wait.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# ruff: noqa: E402  (torch is imported after `prepare`, so that its threads sleep while they wait)
from starc.processor import prepare  # isort: skip

prepare()
import torch
from measure import (
    best,
    cpu_seconds,
    machine_cpu_seconds,
    peak_bytes,
    report,
    resident_bytes,
    row,
    session_bytes,
)
from tokenizers import Tokenizer, models

from starc import config
from starc.config import BeamSearch
from starc.inference import batch
from starc.inference.jobs import Manifest, find_videos, make_jobs
from starc.inference.pipeline import Captioner, Options, ReadVideo
from starc.media.encoders import EfficientNetLite
from starc.media.video import count_frames, probe, sample_frames
from starc.model.checkpoint import Loaded
from starc.model.inputs import spread
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore

Size = int
"""0 quick, 1 usual, 2 full."""
RUNS = (1, 2, 2)
SAMPLE = Path(__file__).parents[1] / "examples/scrambled_eggs.mp4"
SETTINGS = [
    "temporal.features=1280", "temporal.depth=6", "temporal.heads=8", "t5.width=512",
    "t5.feed_forward=2048", "t5.layers=6", "t5.decoder_layers=6", "t5.heads=8",
]  # fmt: skip


def film(
    path: Path, *, seconds: int, size: str = "1280x720", minutes: int = 0, key: int = 0
) -> Path:
    """A moving test picture with noise for sound; `minutes` repeats the first minute."""
    once = path.with_name(f"once-{path.name}")
    sources = ["-f", "lavfi", "-i", f"testsrc2=s={size}:r=25"]
    sources += ["-f", "lavfi", "-i", "anoisesrc=a=0.1"]
    codecs = ["-c:v", "libx264", "-preset", "veryfast", "-g", str(250 - key % 7), "-c:a", "aac"]
    ffmpeg(*sources, "-t", str(seconds), *codecs, "-pix_fmt", "yuv420p", str(once))
    if minutes:
        ffmpeg("-stream_loop", str(minutes - 1), "-i", str(once), "-c", "copy", str(path))
    else:
        once.rename(path)
    return path


def ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], check=True)


def captioner(cache: Path, *, engine: str = "auto") -> Captioner:
    torch.manual_seed(0)
    settings = config.apply_overrides(config.paper(), SETTINGS)
    store = CaptionStore([f"caption {k}" for k in range(1000)], torch.randn(1000, 1280))
    words = {word: n for n, word in enumerate(["<pad>", "</s>", "<unk>", *map(str, range(31000))])}
    loaded = Loaded(
        model=STaRC(settings).eval(),
        tokenizer=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        store=store,
        folder=Path("random"),
        fingerprint="random",
    )
    search = BeamSearch(max_tokens=64, grammar=True)
    options = Options(decoding=search, cache=cache, engine=engine)  # type: ignore[arg-type]
    return Captioner(loaded, options, encoder=EfficientNetLite())


def cpu(call: Callable[[], Any], *, children: bool = False) -> float:
    """CPU seconds of all threads, or of the programs started."""
    before = cpu_seconds(children=children)
    call()
    return cpu_seconds(children=children) - before


def decoding(folder: Path, size: Size) -> None:
    seconds, runs = (10, 60, 600)[size], RUNS[size]
    path = film(folder / "film.mp4", seconds=min(seconds, 60), minutes=seconds // 60)
    filters = "fps=1,scale=398:224:flags=bicubic,crop=224:224"
    command = ["-i", str(path), "-vf", filters, "-pix_fmt", "rgb24", "-f", "rawvideo", "/dev/null"]
    theirs = min(cpu(lambda: ffmpeg(*command), children=True) for _ in range(runs))
    frames = count_frames(path)
    ours = min(cpu(lambda: list(sample_frames(path))) for _ in range(runs))
    few = min(
        cpu(lambda: list(sample_frames(path, indices=spread(frames, 20)))) for _ in range(runs)
    )
    report("decoding", seconds=seconds, ffmpeg_cpu_s=theirs, ours_cpu_s=ours, ratio=theirs / ours)
    report("decoding, 20 frames of all", ours_cpu_s=few, ratio=theirs / few)


def overlap(folder: Path, size: Size) -> None:
    videos = folder / "videos"
    videos.mkdir()
    count, seconds = (2, 8, 16)[size], (5, 30, 30)[size]
    for k in range(count):
        film(videos / f"{k}.mp4", seconds=seconds + k, size="640x360", key=k)
    calls: dict[str, Callable[[Path, Captioner, Path], None]] = {
        "serial": functools.partial(one_after_another, at_once=1),
        "one_thread": functools.partial(one_after_another, at_once=1),
        "in_fours": functools.partial(one_after_another, at_once=4),
        "overlapped": overlapped,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    busy: dict[str, list[float]] = {name: [] for name in calls}
    others, usual = 0.0, torch.get_num_threads()
    for run in range(RUNS[size]):
        for name, call in calls.items():
            place = folder / f"{name} {run}"
            stages = captioner(place / "cache")
            stages.settings  # noqa: B018  loading is no stage
            torch.set_num_threads(1 if name == "one_thread" else usual)
            began, all_before, ours = time.perf_counter(), machine_cpu_seconds(), own_cpu()
            call(videos, stages, place)
            times[name].append(time.perf_counter() - began)
            busy[name].append(own_cpu() - ours)
            others += max(0.0, machine_cpu_seconds() - all_before - busy[name][-1])
    torch.set_num_threads(usual)
    fastest = {name: min(found) for name, found in times.items()}
    report(
        "overlap of stages",
        videos=count,
        cores=os.cpu_count(),
        **{f"{name}_s": seconds for name, seconds in fastest.items()},
        **{f"{name}_cpu_s": min(found) for name, found in busy.items()},
        **{f"ratio_{name}": fastest[name] / fastest["overlapped"] for name in list(calls)[:-1]},
        others_cpu_s=others,
    )


def one_after_another(videos: Path, stages: Captioner, out: Path, *, at_once: int) -> None:
    jobs = make_jobs(find_videos([videos]), out, ["json"])
    for first in range(0, len(jobs), at_once):
        some = jobs[first : first + at_once]
        videos_read = [
            ReadVideo(job.video, stages.read_frames(job.video), stages.read_speech(job.video))
            for job in some
        ]
        for job, captioned in zip(some, stages.caption_read(videos_read), strict=True):
            batch.identify(job.video)
            batch.Output().write(captioned, job)


def overlapped(videos: Path, stages: Captioner, out: Path) -> None:
    jobs = make_jobs(find_videos([videos]), out, ["json"])
    with Manifest(out) as manifest, batch.shared_cores():
        counts = batch.run(jobs, stages, manifest)
    assert counts.done == len(jobs), counts


def own_cpu() -> float:
    """CPU seconds of this process and of the children that have ended."""
    return cpu_seconds() + cpu_seconds(children=True)


class Ran(NamedTuple):
    """One run of a command."""

    wall: float
    cpu: float
    """Seconds of it and of its children."""
    most: int
    """Bytes that all its processes held together."""
    held: list[tuple[float, int]]
    """Seconds since the start, bytes."""


def starc_caption(*arguments: object, cache: Path, **environment: str) -> Ran:
    """`starc caption` as a process of its own."""
    began, before, held = time.perf_counter(), cpu_seconds(children=True), []
    child = subprocess.Popen(
        [sys.executable, "-m", "starc", "caption", *map(str, arguments)],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), **environment},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while child.poll() is None:
        held.append((time.perf_counter() - began, session_bytes(child.pid)))
        time.sleep(max(0.05, 0.01 * held[-1][0]))  # looking costs, too
    assert child.returncode == 0, f"starc caption {arguments}: exit code {child.returncode}"
    wall, used = time.perf_counter() - began, cpu_seconds(children=True) - before
    return Ran(wall, used, max(bytes for _, bytes in held), held)


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Other processes that are always busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while 1: 0"]) for _ in range(count)]
    try:
        yield
    finally:
        for child in spinning:
            child.kill()
            child.wait()


CORES = os.cpu_count() or 1


def sample(folder: Path, size: Size) -> None:
    ways = {"cold": [], "warm": ["--beams", "1"], "kept": []}
    length, ran = probe(SAMPLE).duration, dict[tuple[str, int], Ran]()
    for busy in (0, CORES):
        others = machine_cpu_seconds() - own_cpu()
        with neighbours(busy):
            for name, options in ways.items():
                ran[name, busy] = min(
                    (
                        starc_caption(
                            SAMPLE, "-o", folder / f"{name} {busy} {run}.json", *options,
                            cache=folder / f"cache {busy} {run}",
                        )
                        for run in range(RUNS[size])
                    ),
                    key=lambda one: one.cpu,
                )  # fmt: skip
        others = machine_cpu_seconds() - own_cpu() - others
        print(f"{busy} busy neighbours; all others took {others:.1f} CPU s", flush=True)
    row([f"the sample ({length:.0f} s)", "CPU s", "wall s", "× realtime", "CPU s, busy",
         "wall s, busy", "MB"])  # fmt: skip
    row(["---", *["---:"] * 6])
    for name in ways:
        idle, busy_ = ran[name, 0], ran[name, CORES]
        row([name, f"{idle.cpu:.2f}", f"{idle.wall:.2f}", f"{length / idle.wall:.0f}",
             f"{busy_.cpu:.2f}", f"{busy_.wall:.2f}", f"{idle.most / 2**20:.0f}"])  # fmt: skip


def hour(folder: Path, size: Size) -> None:
    minutes = (2, 60, 60)[size]
    path = film(folder / "hour.mp4", seconds=60, size="640x360", minutes=minutes)
    ran = starc_caption(path, "-o", folder / "hour.json", cache=folder / "cache")
    report("an hour", minutes=minutes, peak_mb=ran.most / 2**20, wall_s=ran.wall, cpu_s=ran.cpu)


def threads(folder: Path, size: Size) -> None:
    ways: dict[str, tuple[list[str], dict[str, str]]] = {
        "default": ([], {}),
        "one_thread": (["--threads", "1"], {}),
        "spinning": ([], {"OMP_WAIT_POLICY": "active", "KMP_BLOCKTIME": "200"}),
    }
    for busy in (0, CORES):
        others, figures = machine_cpu_seconds() - own_cpu(), {}
        with neighbours(busy):
            for name, (options, environment) in ways.items():
                place = folder / f"{name} {busy}"
                ran = starc_caption(
                    SAMPLE, "-o", place, *options, cache=place / "cache", **environment
                )
                figures |= {f"{name}_s": ran.wall, f"{name}_cpu_s": ran.cpu}
        taken = machine_cpu_seconds() - own_cpu() - others
        report("beside busy processes" if busy else "on the machine as it is",
               neighbours=busy, **figures, others_cpu_s=taken)  # fmt: skip


def cache(folder: Path, size: Size) -> None:
    path = film(folder / "cached.mp4", seconds=(10, 60, 300)[size])
    stages = captioner(folder / "cache")
    stages.settings  # noqa: B018
    cold = best(lambda: stages.caption(path), 1).wall
    warm = best(lambda: stages.caption(path), RUNS[size]).wall
    report("cache", cold_s=cold, warm_s=warm, ratio=cold / warm)


def memory(folder: Path, size: Size) -> None:
    minutes, pixels = (2, 20, 120)[size], ("320x180", "320x180", "640x360")[size]
    path = film(folder / "long.mp4", seconds=60, size=pixels, minutes=minutes)
    # A process of its own: the peak of this one has other reasons.
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=peak, args=(path, folder / "long cache", queue))
    child.start()
    held, most, windows, events = queue.get()
    child.join()
    report("memory", minutes=minutes, size=pixels, windows=windows, events=events, models_mb=held,
           peak_mb=most, beside_the_models_mb=most - held)  # fmt: skip


def peak(path: Path, cache: Path, queue: Any) -> None:
    """Megabytes held with models loaded, and at the peak of captioning."""
    torch.set_num_threads(1)
    stages = captioner(cache)
    stages.settings  # noqa: B018
    held = resident_bytes() / 2**20
    captioned = stages.caption(path)
    most = peak_bytes() / 2**20
    queue.put((held, most, captioned.provenance["windows"], len(captioned.events)))


CLAIMS = {
    "sample": sample,
    "hour": hour,
    "threads": threads,
    "decoding": decoding,
    "overlap": overlap,
    "cache": cache,
    "memory": memory,
}
NO_FILMS = ("sample", "threads", "resume")
"""Claims whose videos are not made with ffmpeg."""


def run(claims: Mapping[str, Callable[[Path, Size], None]], what: str) -> None:
    """The command line: which claims, and how large."""
    parser = argparse.ArgumentParser(description=what)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--full", dest="size", action="store_const", const=2, default=1)
    sizes.add_argument("--quick", dest="size", action="store_const", const=0)
    parser.add_argument("--only", nargs="+", choices=claims, default=list(claims))
    arguments = parser.parse_args()
    for name in arguments.only:
        if name not in NO_FILMS and shutil.which("ffmpeg") is None:
            print(f"skipped: {name}, ffmpeg is not installed; the videos are made with it")
            continue
        with tempfile.TemporaryDirectory() as folder:
            claims[name](Path(folder), arguments.size)


if __name__ == "__main__":
    run(CLAIMS, __doc__.splitlines()[0])
