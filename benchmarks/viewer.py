"""What the viewer costs: opening a large library, drawing a long video, streaming to many.

Prints one JSON line per measurement, or what it would need: the library and streaming the packages
of `starc[dev]`, streaming also /proc (Linux), drawing also Chromium.
    python benchmarks/viewer.py
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

try:
    from playwright.sync_api import sync_playwright
    from starlette.testclient import TestClient

    from starc.types import Captioned, Event, Retrieved, Segment, Sentence
    from starc.viewer.server import create_app
    from support.viewer_browser import FLAGS, chromium, running
    from support.viewer_sample import THINGS, VERBS, write_record
except (ModuleNotFoundError, RuntimeError) as error:  # RuntimeError: starlette misses httpx2
    raise SystemExit(
        f"viewer.py: {error.args[0].splitlines()[0]}; pip install 'starc[dev]'"
    ) from None

BASE = "http://127.0.0.1:8350"
SERVER = """
import sys
from pathlib import Path
from starc.viewer.server import serve
tell = lambda address: print(address, flush=True)
serve([Path(sys.argv[1])], port=0, token="none", announce=tell)
"""


def report(what: str, **figures: object) -> None:
    print(json.dumps({"benchmark": what, **figures}), flush=True)


def record(name: str, seconds: int, events: int, sentences: int, seed: int) -> Captioned:
    """A video of the given size; one frame a second, a segment every ten."""
    draw = random.Random(seed)

    def words(n: int) -> str:
        return " and ".join(f"{draw.choice(VERBS)} {draw.choice(THINGS)}" for _ in range(n))

    step, pause = seconds / events, seconds / sentences
    return Captioned(
        name,
        float(seconds),
        tuple(
            Event(round(n * step, 2), round(n * step + step * 0.8, 2), words(1), 0.8)
            for n in range(events)
        ),
        tuple(
            Sentence(round(n * pause, 2), round((n + 0.9) * pause, 2), words(2))
            for n in range(sentences)
        ),
        tuple(float(n) for n in range(seconds)),
        tuple(round(draw.random(), 4) for _ in range(seconds)),
        tuple(
            Segment(
                n, min(seconds, n + 10), draw.randrange(8), 0.5, n % 30 == 0,
                tuple(Retrieved(words(1), round(draw.random(), 3)) for _ in range(10))
                if n % 30 == 0 else (),
            )
            for n in range(0, seconds, 10)
        ),
    )  # fmt: skip


def library(videos: int = 1000) -> None:
    """CPU seconds of the server from its start until the page has its list."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n in range(videos):
            write_record(folder / f"video{n:04}.json", record(f"video{n:04}.mp4", 300, 8, 60, n))
            (folder / f"video{n:04}.mp4").write_bytes(b"\0\0\0\x20ftypisom")
        size = sum(path.stat().st_size for path in folder.glob("*.json"))
        before = time.process_time()
        client = TestClient(create_app([folder]), base_url=BASE)
        for path in ("/", "/static/library.js", "/static/base.css", "/api/library"):
            assert client.get(path).status_code == 200
        opened = time.process_time() - before
        before = time.process_time()
        client.get("/api/library")
        again = time.process_time() - before
        before = time.process_time()
        answer = client.get("/api/search", params={"q": "where do they add garlic?"}).json()
        searched = time.process_time() - before
    report(
        "library", videos=videos, json_MB=round(size / 1e6, 1), first_open_cpu_s=round(opened, 3),
        open_again_cpu_s=round(again, 3), search_cpu_s=round(searched, 3), moments=answer["total"],
        limit_cpu_s=1.0, holds=opened < 1.0,
    )  # fmt: skip


FRAMES = """async ({ frames, idle }) => {
    const { timeline } = starc;
    const middle = timeline.scale.left + timeline.scale.width / 2;
    const gaps = [];
    timeline.frames.length = 0;
    let last = await new Promise(requestAnimationFrame);
    for (let n = 0; n < frames; n += 1) {
        if (idle) {}
        else if (n % 120 < 60) timeline.zoom(n % 120 < 30 ? 1.15 : 1 / 1.15, middle);
        else { timeline.scale.pan(n % 120 < 90 ? 25 : -25); timeline.invalidate(); }
        const now = await new Promise(requestAnimationFrame);
        gaps.push(now - last);
        last = now;
    }
    return { gaps, drawn: [...timeline.frames] };
}"""


def long_video(frames: int = 360) -> None:
    """Frame times in Chromium while a three-hour video is zoomed and scrolled."""
    path = chromium()
    if path is None:
        return report("long video", skipped="no Chromium here; apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        write_record(Path(name) / "long.json", record("long", 10_800, 500, 2_000, 1))
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        with running(create_app([Path(name)])) as site:
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            id = page.request.get(f"{site}/api/library").json()["videos"][0]["id"]
            before = time.perf_counter()
            page.goto(f"{site}/watch/{id}")
            page.wait_for_selector("body[data-ready]")
            opened = time.perf_counter() - before
            cdp = page.context.new_cdp_session(page)
            cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
            idle: list[float] = page.evaluate(FRAMES, {"frames": 60, "idle": True})["gaps"]
            before = _task_seconds(cdp)
            times: dict[str, list[float]] = page.evaluate(FRAMES, {"frames": frames, "idle": False})
            cpu_ms = 1000 * (_task_seconds(cdp) - before) / frames
        browser.close()
    drawn, gaps = (sorted(times[key]) for key in ("drawn", "gaps"))
    report(
        "long video", hours=3, events=500, saliency_points=10_800, opened_s=round(opened, 2),
        drawing_ms_median=round(statistics.median(drawn), 2),
        drawing_ms_p95=round(drawn[int(len(drawn) * 0.95)], 2),
        main_thread_cpu_ms_per_frame=round(cpu_ms, 2),
        frame_gap_ms_median=round(statistics.median(gaps), 1),
        frame_gap_ms_p95=round(gaps[int(len(gaps) * 0.95)], 1),
        idle_gap_ms_median=round(statistics.median(idle), 1), load=round(os.getloadavg()[0], 1),
        limit_ms=16.7, holds=cpu_ms < 16.7,
    )  # fmt: skip


def _task_seconds(cdp: Any) -> float:
    """CPU seconds that the page's main thread has worked."""
    metrics = cdp.send("Performance.getMetrics")["metrics"]
    return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def memory_MB(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def streaming(viewers: int = 20, size_MB: int = 200, each_MB: int = 50) -> None:
    """Memory of the server while many read ranges of a large file at once."""
    if not Path("/proc/self/statm").exists():
        return report("streaming", skipped="no /proc here to read memory from; run it on Linux")
    with tempfile.TemporaryDirectory() as name:
        with (Path(name) / "large.mp4").open("wb") as file:
            file.write(b"\0\0\0\x20ftypisom")
            file.truncate(size_MB * 1_000_000)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, name], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            site = server.stdout.readline().strip().rstrip("/")
            id = json.load(urllib.request.urlopen(f"{site}/api/library"))["videos"][0]["id"]
            peak, before, seconds = _stream(
                f"{site}/api/videos/{id}/media", server.pid, viewers, each_MB
            )
        finally:
            server.terminate()
            server.wait()
    grown = peak - before
    report(
        "streaming", viewers=viewers, streamed_MB=viewers * each_MB, before_MB=round(before, 1),
        peak_MB=round(peak, 1), grown_MB=round(grown, 1),
        MB_per_s=round(viewers * each_MB / seconds), limit_MB=50, holds=grown < 50,
    )  # fmt: skip


def _stream(url: str, pid: int, viewers: int, each_MB: int) -> tuple[float, float, float]:
    def view(n: int) -> None:
        first = n * 1_000_000
        header = {"Range": f"bytes={first}-{first + each_MB * 1_000_000 - 1}"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=header)) as answer:
            assert answer.status == 206
            left: Any = each_MB * 1_000_000
            while chunk := answer.read(1 << 16):
                left -= len(chunk)
            assert left == 0

    before = peak = memory_MB(pid)
    began = time.perf_counter()
    threads = [threading.Thread(target=view, args=(n,)) for n in range(viewers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, memory_MB(pid))
        time.sleep(0.02)
    return peak, before, time.perf_counter() - began


if __name__ == "__main__":
    library()
    streaming()
    long_video()
