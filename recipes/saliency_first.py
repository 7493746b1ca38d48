"""A start for the second stage whose saliency head has learnt already.

    python recipes/saliency_first.py MODEL PREPARED OUT [--epochs 12] [--set key=value]

MODEL is a first stage (Vid2Seq) whose weights stay as they are. Sliding windows and saliency head
are fitted to the listwise saliency loss on the videos of timed.json, which takes minutes, since
nothing is decoded. With a language model as decoder a step costs so much that the second stage is
too short for a head that starts at random, and its prompts would say nothing (dev/LOG.md). Saliency
prompts begin as loud as words. Prints the area under the curve on choose.json after each epoch.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from starc.config import with_sizes_of
from starc.model import checkpoint, saliency
from starc.model.inputs import Batch, Collator
from starc.model.starc import STaRC
from starc.retrieval.datastore import open_datastore
from starc.training import recipes, train
from starc.training.dataset import Videos
from starc.training.evaluate import area_under_curve

RECIPE = "tiny_youcook2"
BATCH = 8


def main() -> None:
    """Fit and save."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("model", type=Path)
    arguments.add_argument("prepared", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--epochs", type=int, default=12)
    arguments.add_argument("--rate", type=float, default=6e-4)
    arguments.add_argument("--set", action="append", default=[], metavar="key=value")
    options = arguments.parse_args()
    start, whole = checkpoint.load(options.model, device="cpu"), recipes.recipe(RECIPE)
    whole = replace(whole, model=with_sizes_of(whole.model, start.config))
    whole = recipes.apply_overrides(whole, options.set)
    model = train.initialised(start, whole)
    if model.prompt_projection is not None and whole.model.llama is not None:
        words_VD = model.causal.llama.model.embed_tokens.weight
        for part in (model.prompt_projection.weight, model.prompt_projection.bias):
            part.data *= words_VD.norm(dim=1).mean() / part.norm()
    assert start.tokenizer is not None
    collate = Collator(whole.model, start.tokenizer)
    timed, chosen = (
        Videos.read(
            options.prepared / f"{name}.json",
            options.prepared / "evidence.safetensors",
            options.prepared / "speech.json",
        )
        for name in ("timed", "choose")
    )
    fit(model, collate, timed, chosen, options.epochs, options.rate)
    store = open_datastore(options.prepared / "datastore")
    checkpoint.save(options.out, model, tokenizer=start.tokenizer, store=store)


def fit(
    model: STaRC, collate: Collator, timed: Videos, chosen: Videos, epochs: int, rate: float
) -> None:
    """Adam on the saliency loss of windows cut anew in each epoch, the rate falling to 0."""
    torch.manual_seed(0)
    assert model.swsa is not None and model.saliency is not None
    learning = [*model.swsa.parameters(), *model.saliency.parameters()]
    optimiser = torch.optim.Adam(learning, lr=rate)
    windowing = model.config.windowing
    seconds = windowing.seconds if windowing else 0.0
    held = chosen.parts(seconds, random.Random(0))[:200]
    steps = epochs * -(-len(timed.parts(seconds, random.Random(0))) // BATCH)
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    for epoch in range(epochs):
        rng, total = random.Random(epoch), 0.0
        parts = timed.parts(seconds, rng)
        rng.shuffle(parts)
        for first in range(0, len(parts), BATCH):
            batch = collate([timed.part(part) for part in parts[first : first + BATCH]], epoch=0)
            assert batch.salient_BT is not None and model.config.saliency is not None
            loss = saliency.loss(
                scores(model, batch),
                batch.salient_BT,
                batch.frame_mask_BT,
                temperature=model.config.saliency.temperature,
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learning, 1.0)
            optimiser.step()
            falling.step()
            optimiser.zero_grad()
            total += float(loss.detach()) * BATCH / len(parts)
        areas = []
        for part in held:
            one = collate([chosen.part(part)], epoch=0)
            assert one.salient_BT is not None
            with torch.no_grad():
                areas.append(area_under_curve(scores(model, one)[0], one.salient_BT[0].bool()))
        known = [area for area in areas if area is not None]
        print(f"epoch {epoch + 1} loss {total:.3f} AUC {sum(known) / len(known):.3f}", flush=True)


def scores(model: STaRC, batch: Batch) -> Tensor:
    """P_s; what lies before the sliding windows does not learn."""
    assert model.swsa is not None and model.saliency is not None
    with torch.no_grad():
        x_BTD = model.eval().encode_frames(batch)
    refined_BTD = model.swsa(x_BTD, batch.frame_mask_BT)
    scores_BT: Tensor = model.saliency(refined_BTD, refined_BTD, batch.frame_mask_BT)
    return scores_BT


if __name__ == "__main__":
    main()
