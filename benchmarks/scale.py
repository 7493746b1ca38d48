"""Many clips, many rows, several workers, an hour: what grows and what must not.

    python benchmarks/scale.py [--full | --quick] [--only clips resume ray hour]

All with the embedded model; videos are made here. `clips` captions many short clips in one run of
`starc caption` and compares a clip's CPU seconds with those of one clip in a process that has
everything loaded, and the memory held in the first quarter of the run with the most of the whole;
`resume` starts a run of which all rows are done; `ray` compares the files of Ray's workers with
those of one process; `hour` is the most that captioning an hour of video holds, all processes
together. `--full` takes 200 clips and 20 videos for Ray.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from measure import best, report
from pipeline import RUNS, Size, film, hour, own_cpu, run, starc_caption

from starc.inference import batch
from starc.inference.jobs import MANIFEST, Manifest, find_videos, make_jobs
from starc.inference.pipeline import Captioner, Options


def clips(folder: Path, size: Size) -> None:
    count = (4, 40, 200)[size]
    videos = folder / "clips"
    videos.mkdir()
    for k in range(count):
        film(videos / f"{k}.mp4", seconds=2 + k % 3, size="320x180", key=k)
    one = Captioner(options=Options(cache=folder / "one cache"))
    paths = sorted(videos.iterdir())
    one.caption(paths[0])
    few = paths[1 : 1 + min(10, count - 1)]
    began = own_cpu()
    for path in few:
        one.caption(path)
    alone = (own_cpu() - began) / len(few)
    first = starc_caption(paths[0], "-o", folder / "first", cache=folder / "first cache")
    ran = starc_caption(videos, "-o", folder / "out", cache=folder / "cache")
    held = [bytes / 2**20 for seconds, bytes in ran.held]
    report("many clips", clips=count, clip_cpu_s=(ran.cpu - first.cpu) / (count - 1),
           one_clip_cpu_s=alone, start_cpu_s=first.cpu - alone, wall_s=ran.wall,
           quarter_mb=max(held[: len(held) // 4]), peak_mb=max(held))  # fmt: skip


def resume(folder: Path, size: Size) -> None:
    rows = (1000, 10_000, 10_000)[size]
    videos, out = folder / "videos", folder / "out"
    videos.mkdir()
    for k in range(rows):
        (videos / f"{k}.mp4").write_bytes(b"x")
    jobs = make_jobs(find_videos([videos]), out, ["json", "vtt"])
    out.mkdir()
    lines = []
    with Manifest(out) as manifest:
        for job in jobs:
            for path in job.outputs.values():
                path.write_bytes(b"x")
            identity = batch.identify(job.video)
            row = batch.done_row(job, manifest, identity, batch.Written((), ()), 1.0, "settings")
            lines.append(json.dumps(dataclasses.asdict(row)) + "\n")
    (out / MANIFEST).write_text("".join(lines))

    def start() -> int:
        jobs = make_jobs(find_videos([videos], out=out), out, ["json", "vtt"])
        with Manifest(out) as manifest:
            return len(batch.pending(jobs, manifest, "settings", resume=True)[0])

    found = best(start, RUNS[size])
    assert found.result == 0
    report("resuming", rows=rows, wall_s=found.wall, cpu_s=found.cpu)


def ray(folder: Path, size: Size) -> None:
    videos, count = folder / "videos", (2, 4, 20)[size]
    videos.mkdir()
    for k in range(count):
        film(videos / f"{k}.mp4", seconds=3 + k, size="320x180", key=k)
    ran = {
        engine: starc_caption(
            videos, "-o", folder / engine, "--engine", engine, cache=folder / f"{engine} cache"
        )
        for engine in ("local", "ray")
    }
    names = {path.name for path in (folder / "local").iterdir()} - {MANIFEST}
    same = all(
        (folder / "local" / name).read_bytes() == (folder / "ray" / name).read_bytes()
        for name in names
    )
    report("ray", videos=count, same_bytes=same, local_s=ran["local"].wall, ray_s=ran["ray"].wall)


CLAIMS = {"clips": clips, "resume": resume, "ray": ray, "hour": hour}

if __name__ == "__main__":
    run(CLAIMS, __doc__.splitlines()[0])
