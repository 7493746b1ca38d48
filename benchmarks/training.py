"""How fast does training go, and how much memory does it need?

    python benchmarks/training.py [--base] [--steps N] [--videos B] [--rounds R] [--quick]

The loop's own step (`Training.optimise`) against a plain loop over the same model with the stock
T5ForConditionalGeneration of transformers: whole padded batches through its encoder, all logits at
once, Adam with its defaults. Same weights, same made-up videos, same batches. Each side runs in a
process of its own, in turns, on one thread; the quickest round counts. The first step of a round
warms up and does not count where there are several. CPU seconds (user + system) are what ratios
are taken of; `data_share` is the time to read and collate a batch as a share of our step, which
the loop moreover spends in another thread. One JSON line per size.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measure import cpu_seconds, peak_bytes, report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from starc.config import T5Config
from starc.model.inputs import Collator
from starc.model.starc import Batch, STaRC
from starc.retrieval.datastore import CaptionStore
from starc.training import recipes
from starc.training.dataset import Videos, batch_order
from starc.training.loop import Task, Training
from starc.training.recipes import Recipe
from starc.training.run import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.stock_t5 import stock

DATA_SHARE = 0.05
"""The data pipeline may take so much of a step."""


class StockT5(nn.Module):
    """What a plain user of transformers would put in the place of starc.decoder.t5.T5."""

    def __init__(self, settings: T5Config) -> None:
        super().__init__()
        self.settings = settings
        self.whole = stock(settings)
        self.whole.config.use_cache = False

    def encode(self, speech_BL: Tensor, mask_BL: Tensor) -> Tensor:
        return self.whole.encoder(input_ids=speech_BL, attention_mask=mask_BL).last_hidden_state

    def loss(
        self,
        memory_BMD: Tensor,
        memory_mask_BM: Tensor,
        target_BL: Tensor,
        target_mask_BL: Tensor,
        *,
        label_smoothing: float,
    ) -> Tensor:
        logits_BLV = self.whole(
            encoder_outputs=BaseModelOutput(last_hidden_state=memory_BMD),
            attention_mask=memory_mask_BM,
            decoder_input_ids=F.pad(target_BL[:, :-1], (1, 0)),
        ).logits
        return F.cross_entropy(
            logits_BLV.flatten(0, 1),
            target_BL.masked_fill(~target_mask_BL, -100).flatten(),
            label_smoothing=label_smoothing,
        )

    @torch.no_grad()
    def rescale_time_embeddings(self) -> None:
        """As published, on the tied table."""
        weight_VD, text = self.whole.shared.weight, self.settings.text_vocabulary
        time_VD = weight_VD[text:]
        time_VD.mul_(weight_VD[:text].norm(dim=1).mean() / time_VD.norm(dim=1).mean())


def recipe_of(size: str, videos: int | None) -> Recipe:
    """`tiny`, or the paper's second stage, which is of T5-base size."""
    chosen = recipes.recipe("tiny" if size == "tiny" else "youcook2")
    return recipes.apply_overrides(chosen, [f"train.batch={videos}"] if videos else [])


def make_data(folder: Path, features: int, videos: int) -> None:
    """Files of videos from 60 to 300 s with 100 to 1000 words of speech and 4 to 10 events."""
    rng, noise = random.Random(0), np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(3000)]

    def text(count: int) -> str:
        return " ".join(words[int(rng.paretovariate(0.5)) % len(words)] for _ in range(count))

    annotations, speech = {}, dict[str, dict[str, Any]]()
    (folder / "features").mkdir()
    for n in range(videos):
        video, seconds = f"video{n:03}", rng.randint(60, 300)
        rows = noise.standard_normal((seconds, features), dtype=np.float32)
        np.save(folder / f"features/{video}.npy", rows)
        cuts = sorted(rng.sample(range(seconds), 2 * rng.randint(4, 10)))
        spans = list(zip(cuts[::2], cuts[1::2], strict=True))
        annotations[video] = {
            "duration": float(seconds),
            "timestamps": spans,
            "sentences": [text(rng.randint(5, 15)) for _ in spans],
        }
        count = rng.randint(10, 100)
        starts = [seconds * k / count for k in range(count)]
        said = [text(10) for _ in starts]
        speech[video] = {"start": starts, "end": [s + 1.0 for s in starts], "text": said}
    (folder / "annotations.json").write_text(json.dumps(annotations))
    (folder / "speech.json").write_text(json.dumps(speech))
    pieces = Tokenizer(models.BPE(unk_token="<unk>"))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=special, show_progress=False)
    pieces.train_from_iterator((line for it in speech.values() for line in it["text"]), trainer)
    pieces.save(str(folder / "tokenizer.json"))


def task_of(folder: Path, chosen: Recipe) -> Task:
    """The files, a datastore of a thousand captions, and how they become batches."""
    width = chosen.model.temporal.features
    found = Videos.read(folder / "annotations.json", folder / "features", folder / "speech.json")
    torch.manual_seed(1)
    store = CaptionStore([f"caption {n}" for n in range(1000)], torch.randn(1000, width))
    collate = Collator(chosen.model, Tokenizer.from_file(str(folder / "tokenizer.json")))
    return Task(found, None, store, collate)


def stock_step(model: STaRC, task: Task, chosen: Recipe) -> Callable[[Batch], float]:
    """A training step as anybody would write it, with stock modules."""
    stock = StockT5(chosen.model.t5)
    # The two tables and the output layer are one: the keys left out are other names of it.
    missing, unknown = stock.whole.load_state_dict(model.t5.state_dict(), strict=False)
    assert not unknown and all("embed_tokens" in key or "lm_head" in key for key in missing)
    stock.whole.tie_weights()
    model.t5 = stock  # type: ignore[assignment]
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(learned, lr=chosen.train.learning_rate)

    def step(batch: Batch) -> float:
        model.train()
        optimiser.zero_grad()
        total = model(batch, task.store).total
        total.backward()
        torch.nn.utils.clip_grad_norm_(learned, chosen.train.clip)
        optimiser.step()
        model.t5.rescale_time_embeddings()
        return float(total.detach())

    return step


def our_step(model: STaRC, task: Task, chosen: Recipe, folder: Path) -> Callable[[Batch], float]:
    """The loop's own step."""
    training = Training(chosen, task, RunFolder(folder, resume=False), model, lambda line: None)
    return lambda batch: float(training.optimise([batch])["loss"])


def one_side(side: str, size: str, folder: Path, steps: int, videos: int | None) -> dict[str, Any]:
    """Seconds, memory and losses of one side, for this process alone."""
    torch.set_num_threads(1)
    chosen = recipe_of(size, videos)
    task = task_of(folder, chosen)
    started = cpu_seconds()
    parts = task.train.parts(0.0, random.Random(0))
    planned = batch_order([task.train.length(part) for part in parts], chosen.train, 0)[:steps]
    read = [task.collate([task.train.part(parts[n]) for n in some], epoch=0) for some in planned]
    data_s = (cpu_seconds() - started) / len(read)
    torch.manual_seed(0)
    model = STaRC(chosen.model)
    with tempfile.TemporaryDirectory() as place:
        if side == "ours":
            step = our_step(model, task, chosen, Path(place) / "run")
        else:
            step = stock_step(model, task, chosen)
        model.eval()
        result: dict[str, Any] = {"data_s": data_s}
        if size == "tiny":  # the same losses, or it would not be the same model
            with torch.no_grad():
                result["loss_without_dropout"] = float(model(read[0], task.store).total)
        result |= timed(step, read)
    result["peak_MB"] = round(peak_bytes() / 2**20)
    return result


def timed(step: Callable[[Batch], float], read: Sequence[Batch]) -> dict[str, float]:
    """CPU and wall seconds of a step; the first one warms up, if it is not the only one."""
    if len(read) > 1:
        step(read[0])
    counted = read[1:] or read
    cpu, wall = cpu_seconds(), time.perf_counter()
    for batch in counted:
        step(batch)
    return {
        "cpu_s": (cpu_seconds() - cpu) / len(counted),
        "wall_s": (time.perf_counter() - wall) / len(counted),
    }


def in_a_process(side: str, size: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", side, "--size", size, "--data", str(folder)]
    command += ["--steps", str(given.steps)]
    command += ["--videos", str(given.videos)] if given.videos else []
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def compare(size: str, given: argparse.Namespace) -> bool:
    """One line for a size; whether the data pipeline keeps its bound."""
    chosen = recipe_of(size, given.videos)
    rounds: dict[str, list[dict[str, Any]]] = {"ours": [], "stock": []}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_data(folder, chosen.model.temporal.features, chosen.train.batch * (given.steps + 1))
        for _ in range(given.rounds):
            for side, found in rounds.items():
                found.append(in_a_process(side, size, folder, given))
    ours, stock = (min(found, key=lambda one: one["cpu_s"]) for found in rounds.values())
    share = ours["data_s"] / ours["cpu_s"]
    figures: dict[str, Any] = {}
    for name, side in (("ours", ours), ("stock", stock)):
        kept = {"cpu_s": side["cpu_s"], "steps_per_s": 1 / side["wall_s"]}
        figures[name] = kept | {"peak_MB": side["peak_MB"]}
    figures["ratio_cpu"] = stock["cpu_s"] / ours["cpu_s"]
    figures["ratio_memory"] = stock["peak_MB"] / ours["peak_MB"]
    figures["data_ms"] = 1000 * ours["data_s"]
    figures["data_share"] = share
    if "loss_without_dropout" in ours:
        losses = [side["loss_without_dropout"] for side in (ours, stock)]
        figures["loss_difference"] = abs(losses[0] / losses[1] - 1)
    report(f"training step, {size}, batch {chosen.train.batch}, {given.steps} steps", **figures)
    return share < DATA_SHARE


def main() -> int:
    """Exit 1 if reading data takes too large a share of a step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", action="store_true", help="T5-base size too: minutes a step")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--videos", type=int, help="batch; the recipe's without it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two steps of two videos, one round")
    parser.add_argument("--side", choices=["ours", "stock"], help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=["tiny", "base"], help="this one alone")
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.steps, given.videos, given.rounds = 2, 2, 1
    if given.side:
        print(json.dumps(one_side(given.side, given.size, given.data, given.steps, given.videos)))
        return 0
    sizes = [given.size] if given.size else ["tiny", "base"] if given.base else ["tiny"]
    kept = [compare(size, given) for size in sizes]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
