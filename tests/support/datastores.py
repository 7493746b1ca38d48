"""A text encoder that needs no weights, and datastores of random rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from starc.retrieval.datastore import CaptionStore


class Letters:
    """A text encoder that counts letters: cheap, deterministic, and similar texts come close."""

    name = "letters"
    width = 26

    def encode(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor(
            [[text.lower().count(chr(97 + n)) + 0.1 for n in range(26)] for text in texts]
        )


def random_store(captions: int, width: int, seed: int = 0, **options: object) -> CaptionStore:
    """Captions `caption 0`, `caption 1`, … with random embeddings."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(captions, width, generator=generator)
    return CaptionStore([f"caption {n}" for n in range(captions)], rows, **options)  # type: ignore[arg-type]
