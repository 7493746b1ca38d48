"""Which videos make a batch, in which order: a function of seed and epoch alone.

Videos whose speech is about equally long go together, so that little of a batch is padding; which
of them meet, and when, is drawn anew in each epoch. The videos left over when batches do not come
out even sit this epoch out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from starc.training.recipes import TrainConfig

_POOL = 32
"""Batches whose videos are sorted by length together."""


def order(lengths: Sequence[int], config: TrainConfig, epoch: int) -> list[list[int]]:
    """The batches of an epoch as indices of videos."""
    rng = random.Random(f"{config.seed}/{epoch}")
    videos = list(range(len(lengths)))
    rng.shuffle(videos)
    size = min(config.batch, len(videos))
    videos = videos[: len(videos) // size * size]
    if not config.group_by_length:
        return _cut(videos, size)
    batches = []
    for pool in _cut(videos, size * _POOL):
        pool.sort(key=lambda video: lengths[video])
        batches += _cut(pool, size)
    rng.shuffle(batches)
    return batches


def per_epoch(videos: int, config: TrainConfig) -> int:
    """Batches in an epoch."""
    return videos // min(config.batch, videos)


def _cut(videos: list[int], size: int) -> list[list[int]]:
    return [videos[n : n + size] for n in range(0, len(videos), size)]
