"""A fresh model whose token embeddings are MiniLM's, reduced to its width.

    python recipes/first_weights.py RECIPE PREPARED OUT [--set key=value]

`PREPARED` is what joint_space.py wrote. Rows keep their principal directions and get T5's unit
variance; pieces that MiniLM does not have, and times, stay as T5 draws them.

Captions repeat what is said, but a small T5 that starts from nothing needs millions of words before
it finds out how to copy. So `copying_heads` gives it the two attentions that do: in the encoder's
first layer a token also takes in the token before it, turned into directions of its own; in the
decoder's first layer the token just written looks for speech tokens that come after its like, and
takes them over. Training is free to change all of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.model.t5 import T5
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
    copying_heads(model.t5)
    tokenizer = checkpoint.read_tokenizer(options.prepared / "tokenizer.json")
    checkpoint.save(options.out, model, tokenizer=tokenizer)


def reduced(rows_VD: Tensor, width: int) -> Tensor:
    """The first `width` principal components, turned at random so that no column stands out."""
    centred_VD = rows_VD - rows_VD.mean(0)
    _, _, direction = torch.linalg.svd(centred_VD, full_matrices=False)
    turn, _ = torch.linalg.qr(torch.randn(width, width))
    small_VD = centred_VD @ direction[:width].T @ turn
    return small_VD / small_VD.std()


@torch.no_grad()
def copying_heads(t5: T5, *, spare: int = 1) -> None:
    """Set all heads but `spare` of two attention layers.

    With orthonormal rows P, Q, U: encoder  v = P, o = Qᵀ, bias to the token before;
                                   decoder  q = P, k = Q, v = U, o = Uᵀ.
    """
    settings = t5.settings
    size = settings.head_width * (settings.heads - spare)
    before, behind, itself = (orthonormal(size, settings.width) for _ in range(3))
    listen = t5.encoder.block[0].layer[0].SelfAttention
    listen.relative_attention_bias.weight[1, : settings.heads - spare] = 8.0
    listen.v.weight[:size] = before
    listen.o.weight[:, :size] = 1.5 * behind.T
    look = t5.decoder.block[0].layer[1].EncDecAttention
    look.q.weight[:size] = 0.25 * before
    look.k.weight[:size] = behind
    look.v.weight[:size] = itself
    look.o.weight[:, :size] = 2.0 * itself.T


def orthonormal(rows: int, width: int) -> Tensor:
    """Random rows of unit length, at right angles."""
    turn, _ = torch.linalg.qr(torch.randn(width, width))
    return turn[:rows]


if __name__ == "__main__":
    main()
