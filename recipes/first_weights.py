"""A fresh model whose token embeddings are MiniLM's, reduced to its width.

    python recipes/first_weights.py RECIPE PREPARED OUT [--set key=value]

`PREPARED` is what joint_space.py wrote. Rows keep their principal directions and get T5's unit
variance; pieces that MiniLM does not have, and times, stay as T5 draws them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training import recipes


def main() -> None:
    """Write the model folder."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("recipe")
    arguments.add_argument("prepared", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--set", action="append", default=[], metavar="key=value")
    options = arguments.parse_args()
    recipe = recipes.apply_overrides(recipes.recipe(options.recipe), options.set)
    torch.manual_seed(recipe.train.seed)
    model = STaRC(recipe.model)
    word_VD = load_file(options.prepared / "words.safetensors")["word"]
    known_V = word_VD.any(1)
    with torch.no_grad():
        rows = model.t5.shared.weight[: len(word_VD)]
        rows[known_V] = reduced(word_VD[known_V], rows.shape[1])
    tokenizer = checkpoint.read_tokenizer(options.prepared / "tokenizer.json")
    checkpoint.save(options.out, model, tokenizer=tokenizer)


def reduced(rows_VD: Tensor, width: int) -> Tensor:
    """The first `width` principal components, turned at random so that no column stands out."""
    centred_VD = rows_VD - rows_VD.mean(0)
    _, _, direction = torch.linalg.svd(centred_VD, full_matrices=False)
    turn, _ = torch.linalg.qr(torch.randn(width, width))
    small_VD = centred_VD @ direction[:width].T @ turn
    return small_VD / small_VD.std()


if __name__ == "__main__":
    main()
