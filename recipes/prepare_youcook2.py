"""From YouCook2's raw files to all that `starc train` reads, in one folder.

    python recipes/prepare_youcook2.py DATA OUT

writes tokenizer.json, joint.safetensors (the maps of joint_space.py), words.safetensors (first
embeddings of the tokens), datastore/ (training captions), cooking/ (our own sentences),
speech.json, annotations: train.json, timed.json (training videos whose speech has times),
extracts.json (to practise on), choose.json, report.json, validation.json; and one feature vector
per second. Those of the training videos stand in every file: in speech.safetensors beside
validation videos that are only heard, in evidence.safetensors beside videos with recognised
actions, in simulated.safetensors beside videos with drawn pictures. Half of the training videos
without recognised actions have no pictures at all, so that the model learns to do without.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import youcook2_data as youcook2
from cooking_steps import cooking_steps
from joint_space import FOLDS, Images, Words, first_embeddings, small_tokenizer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

from starc.media.encoders import MiniLM
from starc.media.features import FrameFeatures, save_features
from starc.model.joint_space import JointSpace
from starc.retrieval.datastore import CaptionStore
from starc.types import Sentence
from starc_eval.annotations import VideoAnnotation, video_id

EVIDENCE = "features/yc2_epic_clip_prediction_5s.txt"
FRAMES = "frames/yc2_600videos_1800frames_224px.tar"


def main() -> None:
    """Read, fit, write."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("data", type=Path)
    arguments.add_argument("out", type=Path)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prepare(options.data, options.out)


def prepare(data: Path, out: Path) -> None:
    """Everything, from the raw files of `data` into `out`."""
    corpus = youcook2.read(data)
    captions = [text for annotated in corpus.train.values() for text in annotated.sentences]
    texts = Embedder(out / "minilm.safetensors")
    texts.prepare([*captions, *_captions(corpus.validation), *_all_speech(corpus)])
    centre = texts(captions).mean(0)
    speech = _timed(corpus, texts, centre)
    tokenizer = small_tokenizer(_spoken(corpus.train, speech), captions)
    tokenizer.save(str(out / "tokenizer.json"))
    first_embeddings(tokenizer, out / "words.safetensors")
    target = {text: normalize(texts([text]) - centre, dim=1)[0] for text in set(captions)}
    fold = {video: n % FOLDS for n, video in enumerate(sorted(corpus.train))}
    words = Words(tokenizer, corpus.train, speech, target, fold)
    print("fitting words", flush=True)
    tables = [words.fit(without) for without in range(FOLDS)]
    images = Images(data / FRAMES, corpus.train, target, fold)
    print("fitting images", flush=True)
    joint = JointSpace(tokenizer, words.fit(None), images.mean, images.deviation, images.fit(None))
    joint.save(out / "joint.safetensors")
    _write_texts(out, corpus, speech)
    print("datastores", flush=True)
    owners = [video for video, one in corpus.train.items() for _ in one.sentences]
    CaptionStore(
        captions, texts(captions) - centre, videos=owners, encoder=MiniLM.name, mean_D=centre
    ).save(out / "datastore")
    ours = cooking_steps()
    texts.prepare(ours)
    CaptionStore(ours, texts(ours) - centre, encoder=MiniLM.name, mean_D=centre).save(
        out / "cooking"
    )
    print("features", flush=True)
    evidence = read_evidence(data / EVIDENCE)
    known = {*captions, *_captions(corpus.validation)}
    target |= {text: normalize(texts([text]) - centre, dim=1)[0] for text in known}
    write_features(out, corpus, speech, joint, tables, images, evidence, target, fold)


class Embedder:
    """MiniLM with a memory on disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, dict[str, Tensor]()
        if path.is_file():
            kept = load_file(path)
            names = bytes(kept["texts"].numpy()).decode().split("\n")
            self.rows = dict(zip(names, kept["embedding"], strict=True))

    def prepare(self, texts: Iterable[str]) -> None:
        """Embed what is not known yet."""
        unknown = sorted({*texts} - self.rows.keys(), key=len)
        encoder = MiniLM() if unknown else None
        for first in range(0, len(unknown), 2048):
            print(f"embedding {first} of {len(unknown)} texts", flush=True)
            some = unknown[first : first + 2048]
            assert encoder is not None
            self.rows.update(zip(some, encoder.encode(some).half(), strict=True))
        if unknown:
            names = torch.tensor(list("\n".join(self.rows).encode()), dtype=torch.uint8)
            save_file({"texts": names, "embedding": torch.stack([*self.rows.values()])}, self.path)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self.rows[text] for text in texts]).float()


def read_evidence(path: Path) -> dict[str, list[str]]:
    """What an action recogniser saw ("take onion") in each 5 seconds of some videos."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for line in path.read_text("utf-8").splitlines():
        clip = re.match(r"\S*/(\S{11})_(\d+) \d+ \d+ (.+)", line)
        if clip:
            found[video_id(clip[1])].append((int(clip[2]), clip[3]))
    return {video: [text for _, text in sorted(rows)] for video, rows in found.items()}


def write_features(
    out: Path,
    corpus: youcook2.Corpus,
    speech: Mapping[str, Sequence[Sentence]],
    joint: JointSpace,
    tables: Sequence[Tensor],
    images: Images,
    evidence: Mapping[str, Sequence[str]],
    target: Mapping[str, Tensor],
    fold: Mapping[str, int],
) -> None:
    """One vector per second: of the speech, and of pictures where there are any or stand-ins."""
    rng = torch.Generator().manual_seed(0)
    real = {(video, text): row for video, text, row in images.known()}
    train, heard, acted, simulated = ({} for _ in range(4))
    coin = random.Random(0)
    for video, annotated in corpus.train.items():
        own = replace(joint, word_VD=tables[fold[video]])
        clip_TD = own.encode_speech(seconds(annotated), speech.get(video, ()))
        if video in evidence:
            clip_TD = clip_TD + actions(own, evidence[video], len(clip_TD))
        elif coin.random() < 0.5:
            clip_TD = clip_TD + pictured(annotated, target, images, real, video, rng)
        train[video] = clip_TD * joint.width**0.5
    for video, annotated in corpus.validation.items():
        clip_TD = joint.encode_speech(seconds(annotated), speech.get(video, ()))
        heard[video] = clip_TD * joint.width**0.5
        shown_TD = actions(joint, evidence.get(video, ()), len(clip_TD))
        acted[video] = (clip_TD + shown_TD) * joint.width**0.5
        drawn_TD = pictured(annotated, target, images, {}, video, rng)
        simulated[video] = (clip_TD + drawn_TD) * joint.width**0.5
    for name, some in (
        ("speech", heard),
        ("evidence", acted),
        ("simulated", simulated),
    ):
        save_features(
            out / f"{name}.safetensors",
            {
                video: FrameFeatures(
                    clip_TD,
                    torch.arange(len(clip_TD)).double(),
                    provenance={"encoder": "joint"},
                )
                for video, clip_TD in ({**train, **some}).items()
            },
        )


def seconds(annotated: VideoAnnotation) -> list[float]:
    """One frame a second."""
    return [n + 0.5 for n in range(max(1, round(annotated.duration or 0)))]


def actions(joint: JointSpace, texts: Sequence[str], frames: int) -> Tensor:
    """Unit vectors of recognised actions, five seconds each; zero beyond them."""
    seen_TD = torch.zeros(frames, joint.width)
    for n, text in enumerate(texts):
        seen_TD[5 * n : 5 * n + 5] = normalize(joint.words(text), dim=0)
    return seen_TD


def pictured(
    annotated: VideoAnnotation,
    target: Mapping[str, Tensor],
    images: Images,
    real: Mapping[tuple[str, str], Tensor],
    video: str,
    rng: torch.Generator,
) -> Tensor:
    """Stand-ins for a video's frames; a segment whose frame we have is that frame."""
    times = seconds(annotated)
    caption_TD = torch.zeros(len(times), images.target_ND.shape[1])
    known: dict[int, Tensor] = {}
    for (start, end), text in zip(annotated.spans, annotated.sentences, strict=True):
        for n, time in enumerate(times):
            if start <= time < end:
                caption_TD[n] = target[text]
                if (video, text) in real:
                    known[n] = real[video, text]
    seen_TD = images.stand_in(caption_TD, rng)
    for n, row in known.items():
        seen_TD[n] = row
    return seen_TD


def _timed(
    corpus: youcook2.Corpus, texts: Embedder, centre: Tensor
) -> dict[str, Sequence[Sentence]]:
    """Speech by video, untimed transcripts aligned with the steps."""
    said = texts(_all_speech(corpus)).mean(0)
    speech = dict(corpus.speech)
    for video, sentences in corpus.untimed.items():
        annotated = corpus.train[video]
        like = (
            normalize(texts(sentences) - said, dim=1)
            @ normalize(texts(annotated.sentences) - centre, dim=1).T
        )
        speech[video] = youcook2.align(sentences, annotated, like.numpy())
    return speech


def _captions(videos: Mapping[str, VideoAnnotation]) -> list[str]:
    return [text for annotated in videos.values() for text in annotated.sentences]


def _all_speech(corpus: youcook2.Corpus) -> list[str]:
    return sorted({text for sentences in corpus.untimed.values() for text in sentences})


def _spoken(
    videos: Mapping[str, VideoAnnotation], speech: Mapping[str, Sequence[Sentence]]
) -> list[str]:
    return [one.text for video in videos for one in speech.get(video, ())]


def _write_texts(
    out: Path, corpus: youcook2.Corpus, speech: Mapping[str, Sequence[Sentence]]
) -> None:
    ids = sorted(corpus.validation)
    choosing = min(youcook2.CHOOSING, len(ids) // 2)
    practice = youcook2.extracts(corpus.train, speech)
    for name, videos in (
        ("train", corpus.train),
        ("timed", {video: corpus.train[video] for video in corpus.train if video in corpus.speech}),
        ("extracts", {video: practice[video] for video in sorted(practice)[::2]}),
        ("validation", corpus.validation),
        ("choose", {video: corpus.validation[video] for video in ids[:choosing]}),
        ("report", {video: corpus.validation[video] for video in ids[choosing:]}),
    ):
        content = {
            video: {
                "duration": annotated.duration,
                "timestamps": [list(span) for span in annotated.spans],
                "sentences": list(annotated.sentences),
            }
            for video, annotated in videos.items()
        }
        (out / f"{name}.json").write_text(json.dumps(content))
    rows = {
        video: {
            "start": [one.start for one in sentences],
            "end": [one.end for one in sentences],
            "text": [one.text for one in sentences],
        }
        for video, sentences in speech.items()
    }
    (out / "speech.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
