"""A program for test_cluster.py: a Ray cluster of two workers, one of which may die half-way."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from starc.inference import cluster
from starc.inference.batch import Output, settings_of
from starc.inference.jobs import Manifest, ManifestRow, find_videos, make_jobs
from support.small_batch import BrightnessCaptioner

HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
"""A dead machine is noticed in seconds."""


class Deadly(BrightnessCaptioner):
    """A video named "deadly" takes its worker down, as a hostile file might."""

    def read_frames(self, video: Path, stop: threading.Event) -> Any:
        if video.stem == "deadly":
            os._exit(1)
        return super().read_frames(video, stop)


def main(folder: Path, out: Path, kill_after: int) -> None:
    machines = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": HEALTH}
    )
    workers = [machines.add_node(num_cpus=2) for _ in range(2)]
    ray.init(address=machines.address, logging_level=logging.ERROR, log_to_driver=False)
    machines.wait_for_nodes()
    rows: list[ManifestRow] = []

    def on_row(row: ManifestRow) -> None:
        rows.append(row)
        if len(rows) == kill_after:
            machines.remove_node(workers[0], allow_graceful=False)

    jobs = make_jobs(find_videos([folder], out=out), out, ["json", "vtt"])
    with Manifest(out) as manifest:
        make = functools.partial(Deadly, 0.05)
        settings = settings_of(make(), Output())
        counts = cluster.run(jobs, make, manifest, settings=settings, on_row=on_row)
    alive = sum(node["Alive"] for node in ray.nodes()) - 1  # type: ignore[no-untyped-call]
    print(
        json.dumps(
            {
                "done": counts.done,
                "failed": counts.failed,
                "skipped": counts.skipped,
                "alive": alive,
            }
        )
    )
    ray.shutdown()
    machines.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
