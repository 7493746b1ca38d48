"""The caption writer of the embedded model: from a GGUF file to the model folder.

    python recipes/caption_writer.py shrink  MODEL.gguf PREPARED START
    python recipes/caption_writer.py retrieve PREPARED
    python recipes/caption_writer.py train   START PREPARED RUN [--minutes 100] [--resume]
    python recipes/caption_writer.py spans   START PREPARED OUT.pt
    python recipes/caption_writer.py ship    MODEL.gguf START RUN SPANS.pt SMALL OUT
    python recipes/caption_writer.py calibrate PREPARED MODEL
    python recipes/caption_writer.py export  MODEL OUT

`shrink` keeps the pieces that cooks say and all but three layers, whose loss was found not to hurt
(START: config.json, tokenizer.json, model.safetensors, and what was kept of the file in kept.json).
`retrieve` finds captions of our own datastore for every training event, with word vectors fitted
without its video. `train` fits low-rank changes; the learning rate follows the clock, so a busy
machine takes fewer steps. Two processes: `torchrun --nproc-per-node 2 recipes/caption_writer.py
train …`; each has one thread. A state is saved every few minutes. `spans` trains the span head on
the first layers, which the changes leave alone, and tunes it on choose.json. `ship` puts writer and
head beside the small STaRC: pretrained matrices bit by bit as the file has them, changes in 8 bits.
`calibrate` fits how sure the model says it is to how often it is right on choose.json: an event is
right if a reference overlaps it by a tIoU of .3 and its caption has METEOR .15 with that
reference's. `export` writes the writer's language model alone, in the layout of the hub, so that
`starc train --init llama:OUT` can start from it. PREPARED is a folder of prepare_youcook2.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from starc.config import LlamaConfig, SpanConfig, WriterConfig, from_dict, to_dict
from starc.decoder import quantised
from starc.decoder.caption_writer import (
    CaptionWriter,
    Span,
    Word,
    blocks,
    logit,
    plain,
    scripts,
    words_of,
)
from starc.decoder.llama import Llama, merge
from starc.decoder.pretrained import (
    Gguf,
    bpe_tokenizer,
    byte_level_bpe,
    half_split,
    hub_name,
    llama_config,
    llama_weights,
)
from starc.decoder.reader import Reader
from starc.decoder.span_head import END as END_LOGIT
from starc.decoder.span_head import START, SpanHead, bins_of, word_states
from starc.inference.predict import predict
from starc.media.subtitles import read_transcripts
from starc.model import checkpoint
from starc.retrieval.datastore import CaptionStore
from starc.training.dataset import Videos
from starc.types import Sentence
from starc_eval import score
from starc_eval.annotations import VideoAnnotation, read_references
from starc_eval.meteor import Meteor

DROPPED = (12, 14, 25)
"""Layers left out. A layer that hardly turns its input may be the one that copies from what was
read (the 17th): these were chosen by the loss of the second copy of random words (dev/LOG.md)."""
END = "<|endoftext|>"
LEFT_OUT = -100
"""Target where there is no loss."""
WARM = 15
"""Steps until the full rate."""
SAVE_EVERY = 240.0
"""Seconds between states."""
RETRIEVED = 2
"""Captions of the datastore read in training, in half of the texts. The shipped writer reads none:
with them it looks less at the speech (dev/LOG.md)."""
RIGHT_OVERLAP, RIGHT_METEOR = 0.3, 0.15
"""From when on an event counts as right."""


# Shrinking --------------------------------------------------------------------------------------


def shrink(file: Path, prepared: Path, out: Path) -> None:
    """Fewer pieces and layers."""
    gguf = Gguf.read(file)
    state, config = llama_weights(gguf), llama_config(gguf)
    tokenizer, pieces = fewer_pieces(byte_level_bpe(gguf), cooking_texts(prepared))
    layers = [n for n in range(config.layers) if n not in DROPPED]
    state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"][pieces]
    out.mkdir(parents=True, exist_ok=True)
    config = replace(config, layers=len(layers), words=len(pieces))
    (out / "config.json").write_text(json.dumps(asdict(config), indent=1))
    (out / "kept.json").write_text(json.dumps({"layers": layers, "pieces": pieces}))
    tokenizer.save(str(out / "tokenizer.json"))
    kept = {name: tensor for old, tensor in state.items() if (name := renumbered(old, layers))}
    save_file({name: t.contiguous() for name, t in kept.items()}, out / "model.safetensors")
    print(f"{out}: {len(pieces)} pieces, {len(layers)} layers")


def renumbered(name: str, layers: Sequence[int]) -> str | None:
    """A parameter's name when only these layers are left; None for the others."""
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    if layer is None:
        return name
    number = int(layer[1])
    return f"model.layers.{layers.index(number)}.{layer[2]}" if number in layers else None


def cooking_texts(prepared: Path) -> list[str]:
    """Speech and captions of the training videos, and our own cooking steps."""
    train = json.loads((prepared / "train.json").read_text())
    speech = json.loads((prepared / "speech.json").read_text())
    steps = [json.loads(line)["caption"] for line in (prepared / "cooking/captions.jsonl").open()]
    said = [" ".join(speech[video]["text"]) for video in train if video in speech]
    written = [text for one in train.values() for text in one["sentences"]]
    return [plain(text) for text in [*said, *written, *steps]]


def fewer_pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Tokenizer, list[int]]:
    """A tokenizer of the pieces that occur twice, bytes included, and their old ids."""
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    merges = [tuple(pair) for pair in model["merges"]]
    parents = {"".join(pair): pair for pair in merges}
    marks = [f" [ ]\n~ ; \n=\n{n} [{n} ]{n}:" for n in range(10)]
    read = tokenizer.encode_batch([*(f" {text}" for text in texts), *marks, *marks])
    count = Counter(piece for one in read for piece in one.tokens)
    wanted = [piece for piece in vocabulary if len(piece) == 1 or count[piece] > 1]
    kept = {END}
    while wanted:
        piece = wanted.pop()
        if piece not in kept:
            kept.add(piece)
            wanted += parents.get(piece, ())
    order = sorted(kept, key=vocabulary.__getitem__)
    known = [pair for pair in merges if {*pair, "".join(pair)} <= kept]
    small = bpe_tokenizer({piece: n for n, piece in enumerate(order)}, known, [END])
    return small, [vocabulary[piece] for piece in order]


# Retrieval --------------------------------------------------------------------------------------


def retrieve(prepared: Path) -> None:
    """retrieved.json: the nearest captions of our datastore for each training event."""
    from joint_space import FOLDS, Words, around  # type: ignore[import-not-found]
    from prepare_youcook2 import Embedder  # type: ignore[import-not-found]

    from starc.model.joint_space import JointSpace

    train = dict(read_references(prepared / "train.json"))
    speech = read_transcripts(prepared / "speech.json")
    captions = [text for one in train.values() for text in one.sentences]
    texts = Embedder(prepared / "minilm.safetensors")
    centre = texts(captions).mean(0)
    target = {text: normalize(texts([text]) - centre, dim=1)[0] for text in set(captions)}
    fold = {video: n % FOLDS for n, video in enumerate(sorted(train))}
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    words = Words(tokenizer, train, speech, target, fold)
    whole = JointSpace.load(prepared / "joint.safetensors", tokenizer)
    joints = [replace(whole, word_VD=words.fit(without)) for without in range(FOLDS)]
    store, nearest = CaptionStore.load(prepared / "cooking"), dict[str, list[list[str]]]()
    for video, one in train.items():
        if not speech.get(video) or not one.spans:
            continue
        joint = joints[fold[video]]
        query_SD = torch.zeros(len(one.spans), joint.width)
        for query_D, span in zip(query_SD, one.spans, strict=True):
            for text, weight in around(speech[video], *span):
                query_D += weight * joint.words(text)
        rows = store.search(query_SD, k=RETRIEVED).index_SR.tolist()
        nearest[video] = [[store.captions[n] for n in row] for row in rows]
    (prepared / "retrieved.json").write_text(json.dumps(nearest))


# Training ---------------------------------------------------------------------------------------


class Video(NamedTuple):
    """What is said and done in a training video."""

    words: list[Word]
    spans: list[Span]
    captions: list[str]
    retrieved: list[list[str]]


class Row(NamedTuple):
    """A text as ids, and its targets."""

    ids: list[int]
    target: list[int]


def read_videos(prepared: Path, name: str) -> dict[str, Video]:
    """The videos of `name`.json that have speech, events in order of time."""
    speech = json.loads((prepared / "speech.json").read_text())
    retrieved = json.loads((prepared / "retrieved.json").read_text())
    videos = {}
    for video, one in json.loads((prepared / f"{name}.json").read_text()).items():
        said, near = speech.get(video), retrieved.get(video)
        order = sorted(range(len(one["sentences"])), key=lambda n: one["timestamps"][n])
        if said and order:
            lines = zip(said["start"], said["end"], said["text"], strict=True)
            videos[video] = Video(
                words_of([Sentence(*line) for line in lines]),
                [tuple(one["timestamps"][n]) for n in order],
                [plain(one["sentences"][n]) for n in order],
                [near[n] if near else [] for n in order],
            )
    return videos


def jittered(span: Span, rng: random.Random, shift: float) -> Span:
    """A span as another model would place it: moved as a whole and at both ends."""
    moved, spread = rng.gauss(0, shift), 0.7 + 0.12 * (span[1] - span[0])
    start, end = (max(0.0, at + moved + rng.gauss(0, spread)) for at in span)
    middle = (start + end) / 2
    return (start, end) if end > start + 2 else (max(0.0, middle - 3), middle + 3)


def rows_of(
    video: Video, tokenizer: Tokenizer, rng: random.Random, *, shift: float, retrieval: float
) -> Iterator[Row]:
    """The texts of a video as the dice fall: some events left out, captions retrieved for some."""
    kept = [n for n in range(len(video.spans)) if rng.random() > 0.1] or [0]
    spans = [
        jittered(video.spans[n], rng, shift) if rng.random() < 0.9 else video.spans[n] for n in kept
    ]
    for script in scripts(spans):
        near = []
        for n in script:
            some = list(video.retrieved[kept[n]]) if rng.random() < retrieval else []
            near.append(some if rng.random() < 0.5 else some[::-1][: rng.choice((1, 2))])
        ids, target = list[int](), list[int]()
        for n, read in zip(
            script, blocks(video.words, [spans[n] for n in script], near), strict=True
        ):
            given = tokenizer.encode(read).ids
            wanted = tokenizer.encode(f" {video.captions[kept[n]]}\n").ids
            ids += [*given, *wanted]
            target += [LEFT_OUT] * len(given) + wanted
        yield Row(ids[:-1], target[1:])


def stream(
    videos: Mapping[str, Video], tokenizer: Tokenizer, seed: str, *, shift: float, retrieval: float
) -> Iterator[Row]:
    """Texts without end, anew in each epoch."""
    epoch = 0
    while True:
        rng = random.Random(f"{seed} {epoch}")
        for name in rng.sample(sorted(videos), len(videos)):
            yield from rows_of(videos[name], tokenizer, rng, shift=shift, retrieval=retrieval)
        epoch += 1


def summed_loss(model: Llama, row: Row) -> Tensor:
    """Cross-entropy summed over the tokens of captions."""
    target_L = torch.tensor(row.target)
    real_L = target_L != LEFT_OUT
    half = model.model.norm.weight.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        states_LD = model(model.embed(torch.tensor([row.ids])))[0]
        logits_LV = model.logits(states_LD[real_L]).float()
    return F.cross_entropy(logits_LV, target_L[real_L], reduction="sum")


def tokens(rows: Sequence[Row]) -> int:
    """Tokens with a loss."""
    return sum(target != LEFT_OUT for row in rows for target in row.target)


def train(options: argparse.Namespace) -> None:
    """Low-rank changes: first mostly the aligned videos, then mostly those with real times."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if world > 1:
        dist.init_process_group("gloo")
    run: Path = options.run
    run.mkdir(parents=True, exist_ok=True)
    model, tokenizer = start_model(options.start, lora=32, lora_from=5)
    if options.changes:
        model.load_state_dict(shipped_changes(options.changes), strict=False)
    if "avx512_bf16" in Path("/proc/cpuinfo").read_text():  # halves the cost of a step
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    step, spent = 0, 0.0
    if options.resume and (run / "state.pt").is_file():
        state = torch.load(run / "state.pt", weights_only=True)
        model.load_state_dict(state["lora"], strict=False)
        optimiser.load_state_dict(state["optimiser"])
        step, spent = state["step"], state["spent"]
    every, timed = (read_videos(options.prepared, name) for name in ("train", "timed"))
    others = {name: video for name, video in every.items() if name not in timed} or timed
    timed = timed or others
    if not timed:
        raise SystemExit(f"{options.prepared}: no training video with speech and events")
    held = read_videos(options.prepared, "choose")
    checked = [
        row
        for name in sorted(held)[:10]
        for row in rows_of(held[name], tokenizer, random.Random(0), shift=0, retrieval=0)
    ][:12]
    seed, options_of = f"{options.seed} {step}", {"retrieval": options.retrieval}
    streams = (
        stream(timed, tokenizer, f"{seed} timed", shift=0.0, **options_of),
        stream(others, tokenizer, f"{seed} others", shift=2.0, **options_of),
    )
    rng, total = random.Random(seed), 60 * options.minutes
    began, saved = time.monotonic() - spent, time.monotonic()
    while spent < total:
        part = spent / total
        falling = min(1.0, max(0.02, (1 - part) / 0.6))
        rate = options.rate * min(1.0, (step + 1) / WARM) * falling
        for group in optimiser.param_groups:
            group["lr"] = rate
        share = 0.12 if part < options.switch else 0.85
        rows = [next(streams[rng.random() >= share]) for _ in range(options.batch)]
        whole, loss = tokens(rows), 0.0
        for row in rows[rank::world]:
            one = summed_loss(model, row)
            (one / whole).backward()
            loss += one.item() / whole
        if world > 1:
            for parameter in trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        step += 1
        clock = torch.tensor([time.monotonic() - began, time.monotonic() - saved])
        if world > 1:
            dist.broadcast(clock, 0)
        spent = float(clock[0])
        if clock[1] > SAVE_EVERY or spent >= total:
            saved = time.monotonic()
            if rank == 0:
                changes = {k: v for k, v in model.state_dict().items() if "lora_" in k}
                state = {"lora": changes, "optimiser": optimiser.state_dict()}
                torch.save(state | {"step": step, "spent": spent}, run / "state.new")
                os.replace(run / "state.new", run / "state.pt")
                with torch.no_grad():
                    held_loss = sum(float(summed_loss(model, row)) for row in checked)
                per_token = held_loss / max(1, tokens(checked))
                print(f"step {step} loss {loss:.3f} held out {per_token:.4f}", flush=True)
    if world > 1:  # a process that leaves before the others aborts them
        dist.barrier()
        dist.destroy_process_group()


def start_model(start: Path, *, lora: int, lora_from: int) -> tuple[Llama, Tokenizer]:
    """The shrunk model with fresh low-rank changes."""
    facts = json.loads((start / "config.json").read_text())
    model = Llama(LlamaConfig(**facts | {"lora": lora, "lora_from": lora_from}))
    model.load_state_dict(load_file(start / "model.safetensors"), strict=False)
    return model, Tokenizer.from_file(str(start / "tokenizer.json"))


def shipped_changes(model: Path) -> dict[str, Tensor]:
    """The low-rank changes of a finished model, to go on from them."""
    stored = quantised.unpack(load_file(model / checkpoint.WRITER))
    return {k.removeprefix("llama."): v for k, v in stored.items() if "lora_" in k}


# Spans ------------------------------------------------------------------------------------------


def spans(start: Path, prepared: Path, out: Path) -> None:
    """Train the span head on the videos whose speech has real times; choose its decoding."""
    torch.set_num_threads(1)
    llama, tokenizer = start_model(start, lora=0, lora_from=0)
    reader = Reader.of(llama)
    speech = read_transcripts(prepared / "speech.json")
    bins, wanted = dict[str, Tensor](), dict[str, VideoAnnotation]()
    parts = {name: read_references(prepared / f"{name}.json") for name in ("timed", "choose")}
    with torch.inference_mode():
        for videos in parts.values():
            for name, video in videos.items():
                if speech.get(name) and video.duration:
                    words, layers = words_of(speech[name]), SpanConfig().layers
                    states = word_states(reader, tokenizer, words, layers)
                    bins[name] = bins_of(states, video.duration, SpanConfig().bin)
                    wanted[name] = video
    settings = SpanConfig()
    head = SpanHead(llama.settings.width, settings).eval()
    train_names = [name for name in parts["timed"] if name in bins]
    for seed, member in enumerate(head.members):
        train_member(member, train_names, bins, wanted, seed)
    names = [name for name in parts["choose"] if name in bins]
    head.settings, f1 = tuned(head, names, bins, wanted)
    print(f"F1 {100 * f1:.2f} on choose.json with {head.settings}", flush=True)
    torch.save({"head": head.state_dict(), "settings": asdict(head.settings)}, out)


def train_member(
    member: nn.Module,
    names: Sequence[str],
    bins: Mapping[str, Tensor],
    wanted: Mapping[str, VideoAnnotation],
    seed: int,
    *,
    epochs: int = 25,
    rate: float = 3e-3,
    batch: int = 8,
) -> None:
    """Binary cross-entropy of start, end and inside on random parts of the videos."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    for parameter in member.children():
        if isinstance(parameter, nn.Linear | nn.GRU):
            parameter.reset_parameters()
    member.train()
    optimiser = torch.optim.AdamW(member.parameters(), lr=rate, weight_decay=0.02)
    steps, step = epochs * (len(names) // batch), 0
    for _ in range(epochs):
        order = rng.sample(list(names), len(names))
        for first in range(0, len(order) - batch + 1, batch):
            rows, labels = list[Tensor](), list[Tensor]()
            for name in order[first : first + batch]:
                x_TD, y_T3 = bins[name].clone(), span_labels(wanted[name], len(bins[name]))
                if len(x_TD) > 60:
                    at = rng.randrange(len(x_TD) - 50)
                    part = slice(at, at + rng.randrange(50, 150))
                    x_TD, y_T3 = x_TD[part], y_T3[part]
                rows.append(x_TD)
                labels.append(y_T3)
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
            real_BT = pad_sequence([torch.ones(len(row)) for row in rows], True)
            loss_BT = F.binary_cross_entropy_with_logits(
                member(pad_sequence(rows, True)), pad_sequence(labels, True), reduction="none"
            ).mean(-1)
            optimiser.zero_grad()
            ((loss_BT * real_BT).sum() / real_BT.sum()).backward()
            torch.nn.utils.clip_grad_norm_(member.parameters(), 1.0)
            optimiser.step()
            step += 1
    member.eval()


def span_labels(video: VideoAnnotation, count: int) -> Tensor:
    """Starts and ends smeared over some seconds, and the part of each bin inside an event."""
    size, blur = SpanConfig().bin, 3.0
    middle_T, label_T3 = (torch.arange(count) + 0.5) * size, torch.zeros(count, 3)
    for start, end in video.spans:
        for n, at in ((START, start), (END_LOGIT, end)):
            near_T = torch.exp(-((middle_T - at) ** 2) / (2 * blur**2))
            label_T3[:, n] = torch.maximum(label_T3[:, n], near_T)
        covered_T = (middle_T + size / 2).clamp(max=end) - (middle_T - size / 2).clamp(min=start)
        label_T3[:, 2] = torch.maximum(label_T3[:, 2], (covered_T / size).clamp(0, 1))
    return label_T3


@torch.no_grad()
def tuned(
    head: SpanHead,
    names: Sequence[str],
    bins: Mapping[str, Tensor],
    wanted: Mapping[str, VideoAnnotation],
) -> tuple[SpanConfig, float]:
    """The settings of decoding with the best F1."""
    logits = {name: head(bins[name][None])[0] for name in names}
    references = {name: wanted[name] for name in names}
    best = (head.settings, 0.0)
    for reward, inside, length in itertools.product((1.5, 2, 2.5, 3, 3.5), (0, 1, 2), (0, 0.5, 1)):
        numbers = (float(number) for number in (reward, inside, length))
        head.settings = SpanConfig(
            **dict(zip(("reward", "inside", "length"), numbers, strict=True))
        )
        made = {}
        for name in names:
            spans = head.spans(logits[name], wanted[name].duration or 1.0, SpanConfig().bin)
            times = tuple((one.start, one.end) for one in spans)
            made[name] = VideoAnnotation(times, ("x",) * len(times), wanted[name].duration)
        f1 = localisation(made, references)
        if f1 > best[1]:
            best = (head.settings, f1)
    head.settings = best[0]
    return best


def localisation(
    made: Mapping[str, VideoAnnotation], references: Mapping[str, VideoAnnotation]
) -> float:
    """F1 of the times alone."""
    return float(score(made, references, metrics=("localisation",)).metrics["F1"])


def overlap(one: Span, other: Span) -> float:
    """tIoU."""
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return max(0.0, shared) / (max(one[1], other[1]) - min(one[0], other[0]))


# Shipping ---------------------------------------------------------------------------------------


def ship(file: Path, start: Path, run: Path, spans: Path, small: Path, out: Path) -> None:
    """The small model's folder with the writer in it."""
    gguf, kept = Gguf.read(file), json.loads((start / "kept.json").read_text())
    whole = llama_config(gguf)
    tensors: dict[str, Tensor] = {}
    for name, stored in gguf.tensors.items():
        new = renumbered(hub_name(name), kept["layers"])
        if new is None:
            continue
        if stored.format.name not in ("Q4_1", "Q8_0"):
            tensors[new] = gguf.tensor(name)
            continue
        unpacked = quantised.from_q4_1 if stored.format.name == "Q4_1" else quantised.from_q8_0
        groups = unpacked(gguf.blocks(name), stored.shape[0])
        for kind, tensor in groups.items():
            if "embed_tokens" in new:
                tensor = tensor[kept["pieces"]]
            elif "q_proj" in new or "k_proj" in new:
                heads = whole.heads if "q_proj" in new else whole.key_value_heads
                tensor = half_split(tensor.flatten(1), heads).view(tensor.shape)
            tensors[f"{new}.{kind}"] = tensor
    changes = torch.load(run / "state.pt", weights_only=True)["lora"]
    for name, tensor in changes.items():
        tensors |= {f"{name}.{kind}": part for kind, part in quantised.to_8_bits(tensor).items()}
    rank = next(len(t) for name, t in changes.items() if "lora_A" in name)
    first = min(int(name.split(".")[2]) for name in changes)
    facts = json.loads((start / "config.json").read_text()) | {"lora": rank, "lora_from": first}
    if out != small:
        shutil.copytree(small, out, dirs_exist_ok=True)
    path = out / checkpoint.CONFIG
    config = json.loads(path.read_text())
    mark = {checkpoint.MARK: config.pop(checkpoint.MARK)}
    timing = torch.load(spans, weights_only=True)
    writer = WriterConfig(
        llama=LlamaConfig(**facts), spans=SpanConfig(**timing["settings"]), retrieved=0
    )
    config = replace(from_dict(config), writer=writer)
    path.write_text(json.dumps(mark | to_dict(config), indent=2) + "\n")
    whole_file = {f"llama.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    whole_file |= {f"head.{name}": tensor.half() for name, tensor in timing["head"].items()}
    save_file(whole_file, out / checkpoint.WRITER)
    (out / checkpoint.WRITER).chmod(0o644)
    shutil.copyfile(start / "tokenizer.json", out / checkpoint.WRITER_TOKENIZER)
    size = sum(item.stat().st_size for item in out.rglob("*") if item.is_file())
    print(f"{out}: {size / 1e6:.1f} MB")


def calibrate(prepared: Path, model: Path) -> None:
    """Write into the model's config.json how sure it may be; print a reliability curve."""
    loaded = checkpoint.load(model, device="cpu")
    writer = loaded.writer
    assert writer is not None
    plain_writer = CaptionWriter(
        writer.reader, writer.tokenizer, replace(writer.settings, calibration=(0.0, 1.0, 0.0)),
        writer.folder, writer.head,
    )  # fmt: skip
    judge, features, right = Meteor(), list[tuple[float, float]](), list[float]()
    videos = Videos.read(
        prepared / "choose.json", prepared / "speech.safetensors", prepared / "speech.json"
    )
    bare = replace(loaded, writer=plain_writer, store=CaptionStore.load(prepared / "cooking"))
    for n in range(len(videos)):
        inputs = videos.inputs(n)
        (prediction,) = predict(bare, [inputs])
        said = inputs.sentences
        spans = writer.timing(said, inputs.duration).spans if said else []
        reference = videos.annotations[inputs.id]
        for event, span in zip(prediction.events, spans, strict=False):
            near = [
                caption
                for other, caption in zip(reference.spans, reference.sentences, strict=True)
                if overlap((event.start, event.end), other) >= RIGHT_OVERLAP
            ]
            scores = [judge.score(event.caption, caption) for caption in near]
            features.append((logit(span.confidence), logit(event.confidence or 0.5)))
            right.append(float(max(scores, default=0.0) >= RIGHT_METEOR))
    weight = torch.zeros(3, requires_grad=True)
    x_N3 = torch.tensor([(*one, 1.0) for one in features])
    y_N = torch.tensor(right)
    optimiser = torch.optim.LBFGS([weight], max_iter=200)

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.binary_cross_entropy_with_logits(x_N3 @ weight, y_N)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)
    path = model / checkpoint.CONFIG
    facts = json.loads(path.read_text())
    facts["writer"]["calibration"] = [round(one, 4) for one in weight.tolist()]
    path.write_text(json.dumps(facts, indent=2) + "\n")
    sure_N = (x_N3 @ weight).sigmoid().detach()
    print(f"{len(y_N)} events, {y_N.mean():.3f} right; {facts['writer']['calibration']}")
    for low in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        some_N = (sure_N >= low) & (sure_N < low + 0.1)
        if some_N.any():
            said, was = float(sure_N[some_N].mean()), float(y_N[some_N].mean())
            print(f"said {said:.2f}, was {was:.2f}, {int(some_N.sum())} events")


def export(model: Path, out: Path) -> None:
    """The language model, its changes merged, as the hub lays models out."""
    settings = json.loads((model / checkpoint.CONFIG).read_text())["writer"]["llama"]
    llama = Llama(config := LlamaConfig(**settings))
    stored = quantised.unpack(load_file(model / checkpoint.WRITER))
    inside = {k.removeprefix("llama."): v for k, v in stored.items() if k.startswith("llama.")}
    llama.load_state_dict(inside)
    merge(llama)
    facts = {
        "model_type": "llama",
        "hidden_size": config.width,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_width,
        "vocab_size": config.words,
        "rope_theta": config.rope_base,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": True,
    }
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(facts, indent=1))
    save_file(llama.state_dict(), out / "model.safetensors")
    shutil.copyfile(model / checkpoint.WRITER_TOKENIZER, out / "tokenizer.json")


def main() -> None:
    """One of these."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = arguments.add_subparsers(dest="kind", required=True)
    for kind, paths in (
        ("shrink", ("file", "prepared", "out")),
        ("retrieve", ("prepared",)),
        ("train", ("start", "prepared", "run")),
        ("spans", ("start", "prepared", "out")),
        ("ship", ("file", "start", "run", "spans", "small", "out")),
        ("calibrate", ("prepared", "model")),
        ("export", ("model", "out")),
    ):
        one = kinds.add_parser(kind)
        for path in paths:
            one.add_argument(path, type=Path)
        if kind == "train":
            one.add_argument("--minutes", type=float, default=100)
            one.add_argument("--rate", type=float, default=1e-3)
            one.add_argument("--batch", type=int, default=6)
            one.add_argument("--seed", type=int, default=0)
            one.add_argument("--retrieval", type=float, default=0.5)
            one.add_argument("--switch", type=float, default=0.4)
            one.add_argument("--changes", type=Path, help="go on from a finished model's changes")
            one.add_argument("--resume", action="store_true")
    options = arguments.parse_args()
    if options.kind == "train":
        train(options)
        return
    paths = {name: value for name, value in vars(options).items() if name != "kind"}
    steps = {"shrink": shrink, "retrieve": retrieve, "spans": spans, "ship": ship}
    steps |= {"calibrate": calibrate, "export": export}
    steps[options.kind](**paths)


if __name__ == "__main__":
    main()
