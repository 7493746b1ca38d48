"""A fresh model whose token embeddings are MiniLM's, reduced to its width.

    python recipes/first_weights.py RECIPE PREPARED OUT [--after MODEL] [--set key=value]

`PREPARED` is what prepare_youcook2.py wrote. Rows keep their principal directions and get T5's unit
variance; pieces that MiniLM does not have, and times, stay as T5 draws them.

With `--after`, the first weights of the second stage: MODEL's, and R = Linear(retrieved) starts as
the least-squares map from a caption's embedding to its words, as loud as speech. Drawn at random it
would be twenty times softer than the speech beside it, and a decoder never learns to listen to it.

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
from tokenizers import Tokenizer
from torch import Tensor

from starc.decoder.t5 import T5
from starc.model import checkpoint
from starc.model.joint_space import JointSpace
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from starc.training import recipes, train


def main() -> None:
    """Write the model folder."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("recipe")
    arguments.add_argument("prepared", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--after", type=Path, metavar="MODEL")
    arguments.add_argument("--set", action="append", default=[], metavar="key=value")
    options = arguments.parse_args()
    recipe = recipes.apply_overrides(recipes.recipe(options.recipe), options.set)
    torch.manual_seed(recipe.train.seed)
    model = STaRC(recipe.model)
    tokenizer = checkpoint.read_tokenizer(options.prepared / "tokenizer.json")
    if options.after:
        model = train.initialised(checkpoint.load(options.after, device="cpu"), recipe)
        retrieved_words(model, CaptionStore.load(options.prepared / "datastore"), tokenizer)
    else:
        known_words(model.t5, options.prepared / "words.safetensors")
        copying_heads(model.t5)
    joint = JointSpace.load(options.prepared / "joint.safetensors", tokenizer)
    checkpoint.save(options.out, model, tokenizer=tokenizer, joint=joint)


@torch.no_grad()
def known_words(t5: T5, path: Path) -> None:
    """MiniLM's embeddings of the pieces it has."""
    word_VD = load_file(path)["word"]
    known_V = word_VD.any(1)
    rows = t5.shared.weight[: len(word_VD)]
    rows[known_V] = reduced(word_VD[known_V], rows.shape[1])


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


@torch.no_grad()
def retrieved_words(model: STaRC, store: CaptionStore, tokenizer: Tokenizer) -> None:
    """R of a caption: the mean of its words' embeddings, rare words counting more."""
    assert model.retrieved_projection is not None
    encoded = tokenizer.encode_batch(list(store.captions), add_special_tokens=False)
    owner = torch.tensor([n for n, one in enumerate(encoded) for _ in one.ids])
    piece = torch.tensor([id for one in encoded for id in one.ids])
    table_VD = model.t5.shared.weight
    rarity_V = (len(encoded) / (1 + torch.bincount(piece, minlength=len(table_VD)))).log()
    word_ND = torch.zeros(len(encoded), table_VD.shape[1])
    word_ND.index_add_(0, owner, table_VD[piece] * rarity_V[piece, None])
    known_ND = store.embedding_ND
    gram_DD = known_ND.T @ known_ND + 10 * torch.eye(known_ND.shape[1])
    map_DD = torch.linalg.solve(gram_DD, known_ND.T @ word_ND)
    loudness = (known_ND @ map_DD).norm(dim=1).mean() / table_VD.shape[1] ** 0.5
    model.retrieved_projection.weight.copy_((map_DD / loudness).T)
    model.retrieved_projection.bias.zero_()


def orthonormal(rows: int, width: int) -> Tensor:
    """Random rows of unit length, at right angles."""
    turn, _ = torch.linalg.qr(torch.randn(width, width))
    return turn[:rows]


if __name__ == "__main__":
    main()
