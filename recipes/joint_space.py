"""From YouCook2's raw files to all that `starc train` reads, in one folder.

    python recipes/joint_space.py DATA OUT

writes tokenizer.json, joint.safetensors (the maps of starc.media.joint), words.safetensors (first
embeddings of the tokens), train.json, eighth.json (every eighth training video), extracts.json (to
practise on), choose.json, report.json, validation.json (annotations), speech.json, datastore/
(training captions), cooking/ (our own sentences), and frame features: features.safetensors to train
on and, with validation videos, speech.safetensors, evidence.safetensors, simulated.safetensors.

Frames of YouCook2 are at hand for three segments of 600 videos only. Where there are none a
stand-in is drawn: the caption of the step, moved and blurred as images are against captions,

    seen = unit(m + t A + .35 e),   e ~ N(0, covariance of the residuals)

with m, A and the covariance fitted on training frames that the image map had not seen. Every other
training video has no pictures at all, so that the model learns to do without. Whatever a map says
about a training video comes from maps fitted without it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import scipy.linalg
import scipy.sparse
import torch
import youcook2_data as youcook2
from cooking_steps import cooking_steps
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import normalize

from starc.annotations import Annotated, video_id
from starc.media.embedded import EfficientNetLite, MiniLM
from starc.media.features import Features, save_features
from starc.media.joint import REACH, JointSpace
from starc.model.datastore import CaptionStore
from starc.types import Frame, Sentence

FOLDS = 5
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
        captions, texts(captions) - centre, videos=owners, tower=MiniLM.name, mean_D=centre
    ).save(out / "datastore")
    ours = cooking_steps()
    texts.prepare(ours)
    CaptionStore(ours, texts(ours) - centre, tower=MiniLM.name, mean_D=centre).save(out / "cooking")
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
        tower = MiniLM() if unknown else None
        for first in range(0, len(unknown), 2048):
            print(f"embedding {first} of {len(unknown)} texts", flush=True)
            some = unknown[first : first + 2048]
            assert tower is not None
            self.rows.update(zip(some, tower.captions(some).half(), strict=True))
        if unknown:
            names = torch.tensor(list("\n".join(self.rows).encode()), dtype=torch.uint8)
            save_file({"texts": names, "embedding": torch.stack([*self.rows.values()])}, self.path)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self.rows[text] for text in texts]).float()


def small_tokenizer(spoken: Sequence[str], captions: Sequence[str]) -> Tokenizer:
    """WordPiece with those pieces of MiniLM's that cooks use; lower case, no punctuation.

    Words that cooks say all the time and captions never use are left out: half of all speech.
    """
    idle = "|".join(youcook2.idle_words(spoken, captions))
    tokenizer: Tokenizer = MiniLM().tokenizer
    tokenizer.no_truncation()
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(" ?['’]"), ""),
            normalizers.Replace(Regex("[^a-z0-9]+"), " "),
            normalizers.Replace(Regex(rf"\b(?:{idle})\b"), ""),
            normalizers.Strip(),
        ]
    )
    said, written = (
        Counter(
            piece
            for encoded in tokenizer.encode_batch(list(texts), add_special_tokens=False)
            for piece in encoded.tokens
        )
        for texts in (spoken, captions)
    )
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    base = [*letters, *(f"##{letter}" for letter in letters)]
    pieces = [
        piece
        for piece, _ in (said + written).most_common()
        if piece not in base and (said[piece] >= 6 or written[piece] >= 2)
    ]
    sentinels = [f"<extra_id_{n}>" for n in range(99, -1, -1)]
    vocabulary = ["<pad>", "</s>", "<unk>", *base, *pieces, *sentinels]
    small = Tokenizer(
        models.WordPiece(
            {piece: n for n, piece in enumerate(vocabulary)},
            unk_token="<unk>",
            max_input_chars_per_word=40,
        )
    )
    small.normalizer = tokenizer.normalizer
    small.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    small.decoder = decoders.WordPiece(cleanup=False)
    return small


def first_embeddings(tokenizer: Tokenizer, path: Path) -> None:
    """MiniLM's own token embeddings of our pieces; unknown ones are zero."""
    tower = MiniLM()
    table_VD = tower.model.embeddings.word_embeddings.weight.detach()
    rows = torch.zeros(tokenizer.get_vocab_size(), table_VD.shape[1])
    for piece, row in tokenizer.get_vocab().items():
        known = tower.tokenizer.token_to_id(piece)
        if known is not None:
            rows[row] = table_VD[known]
    save_file({"word": rows}, path)


class Words:
    """The map of words: ridge regression from bags of tokens to embeddings of captions."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: Mapping[str, Annotated],
        speech: Mapping[str, Sequence[Sentence]],
        target: Mapping[str, Tensor],
        fold: Mapping[str, int],
    ) -> None:
        self.tokenizer, self.size = tokenizer, tokenizer.get_vocab_size()
        events = [
            (video, span, text)
            for video, annotated in train.items()
            for span, text in zip(annotated.spans, annotated.sentences, strict=True)
        ]
        self.fold_N = np.array([fold[video] for video, _, _ in events])
        self.target_ND = np.stack([target[text].numpy() for _, _, text in events])
        self.written = scipy.sparse.vstack([self.bag([(text, 1.0)]) for _, _, text in events])
        self.heard = scipy.sparse.vstack(
            [self.bag(around(speech.get(video, ()), *span)) for video, span, _ in events]
        )

    def bag(self, weighted: Sequence[tuple[str, float]]) -> scipy.sparse.csr_matrix:
        """Shares of the tokens in some texts."""
        row = np.zeros((1, self.size), dtype=np.float32)
        for text, weight in weighted:
            np.add.at(row[0], self.tokenizer.encode(text).ids, weight)
        return scipy.sparse.csr_matrix(row / max(row.sum(), 1.0))

    def fit(self, without: int | None) -> Tensor:
        """E, from captions to themselves and from the speech of a step to its caption."""
        used = np.flatnonzero(self.fold_N != without)
        gram = np.eye(self.size, dtype=np.float32)
        right = np.zeros((self.size, self.target_ND.shape[1]), dtype=np.float32)
        for rows, weight in ((self.written[used], 1.0), (self.heard[used], 2.0)):
            gram += weight * (rows.T @ rows).toarray()
            right += weight * (rows.T @ self.target_ND[used])
        return torch.from_numpy(scipy.linalg.solve(gram, right, assume_a="pos")).float()


def around(sentences: Sequence[Sentence], start: float, end: float) -> list[tuple[str, float]]:
    """What is said in or near a step, with weights as in `JointSpace.said`."""
    away = [(one.text, max(one.start - end, start - one.end, 0.0)) for one in sentences]
    return [(text, 1 - distance / REACH) for text, distance in away if distance < REACH]


class Images:
    """The map of images, and how images differ from captions."""

    def __init__(
        self,
        path: Path,
        train: Mapping[str, Annotated],
        target: Mapping[str, Tensor],
        fold: Mapping[str, int],
    ) -> None:
        pictures, captions, self.videos = read_frames(path, train)
        self.captions = captions
        raw_NI = EfficientNetLite().images(pictures)
        self.mean, self.deviation = raw_NI.mean(0), raw_NI.std(0).clamp(min=1e-3)
        self.standard_NI = (raw_NI - self.mean) / self.deviation
        self.target_ND = torch.stack([target[text] for text in captions])
        self.fold_N = torch.tensor([fold[video] for video in self.videos])
        self.seen_ND = torch.zeros_like(self.target_ND)
        for without in range(FOLDS):
            left_out = self.fold_N == without
            seen_ND = self.standard_NI[left_out] @ self.fit(without)
            self.seen_ND[left_out] = normalize(seen_ND, dim=1)
        self._fit_gap()

    def fit(self, without: int | None, *, penalty: float = 1e4) -> Tensor:
        """A, by ridge regression."""
        used = self.fold_N != (-1 if without is None else without)
        x_NI, y_ND = self.standard_NI[used].double(), self.target_ND[used].double()
        gram_II = x_NI.T @ x_NI + penalty * torch.eye(x_NI.shape[1], dtype=torch.float64)
        return torch.linalg.solve(gram_II, x_NI.T @ y_ND).float()

    def _fit_gap(self) -> None:
        given = torch.cat([self.target_ND, torch.ones(len(self.target_ND), 1)], dim=1).double()
        gram = given.T @ given + 10 * torch.eye(given.shape[1], dtype=torch.float64)
        self.gap = torch.linalg.solve(gram, given.T @ self.seen_ND.double())
        rest_ND = self.seen_ND.double() - given @ self.gap
        covariance = rest_ND.T @ rest_ND / len(rest_ND)
        covariance += 1e-6 * torch.eye(len(covariance), dtype=torch.float64)
        self.spread = torch.linalg.cholesky(covariance)

    def known(self) -> list[tuple[str, str, Tensor]]:
        """(video, caption, unit vector) of every frame, from a map fitted without its video."""
        return list(zip(self.videos, self.captions, self.seen_ND, strict=True))

    def stand_in(self, caption_ND: Tensor, dice: torch.Generator) -> Tensor:
        """Unit vectors as pictures of these captions (zero: of nothing) would give them."""
        given = torch.cat([caption_ND, torch.ones(len(caption_ND), 1)], dim=1).double()
        noise = torch.randn(caption_ND.shape, generator=dice, dtype=torch.float64)
        seen_ND = given @ self.gap + 0.35 * noise @ self.spread.T
        return normalize(seen_ND, dim=1).float()


def read_frames(
    path: Path, train: Mapping[str, Annotated]
) -> tuple[list[Frame], list[str], list[str]]:
    """Pictures of training videos, the captions of their segments, their videos."""
    frames, captions, videos = [], [], []
    with tarfile.open(path) as archive:
        for row in json.loads(_content(archive, "meta.json")):
            video, caption = row["video"], row["sentence"]
            if video in train and caption in train[video].sentences:
                with av.open(BytesIO(_content(archive, row["file"]))) as picture:
                    rgb_HWC = next(picture.decode(video=0)).to_ndarray(format="rgb24")
                frames.append(Frame(0.0, _centre(rgb_HWC)))
                captions.append(caption)
                videos.append(video)
    return frames, captions, videos


def read_evidence(path: Path) -> dict[str, list[str]]:
    """What an action recogniser saw ("take onion") in each 5 seconds of some videos."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for line in path.read_text().splitlines():
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
    dice = torch.Generator().manual_seed(0)
    real = {(video, text): row for video, text, row in images.known()}
    train, heard, acted, simulated = ({} for _ in range(4))
    coin = random.Random(0)
    for video, annotated in corpus.train.items():
        own = replace(joint, word_VD=tables[fold[video]])
        clip_TD = own.said(seconds(annotated), speech.get(video, ()))
        if video in evidence:
            clip_TD = clip_TD + actions(own, evidence[video], len(clip_TD))
        elif coin.random() < 0.5:
            clip_TD = clip_TD + pictured(annotated, target, images, real, video, dice)
        train[video] = clip_TD * joint.width**0.5
    for video, annotated in corpus.validation.items():
        clip_TD = joint.said(seconds(annotated), speech.get(video, ()))
        heard[video] = clip_TD * joint.width**0.5
        shown_TD = actions(joint, evidence.get(video, ()), len(clip_TD))
        acted[video] = (clip_TD + shown_TD) * joint.width**0.5
        drawn_TD = pictured(annotated, target, images, {}, video, dice)
        simulated[video] = (clip_TD + drawn_TD) * joint.width**0.5
    for name, some in (
        ("features", train),
        ("speech", heard),
        ("evidence", acted),
        ("simulated", simulated),
    ):
        save_features(
            out / f"{name}.safetensors",
            {
                video: Features(clip_TD, torch.arange(len(clip_TD)).double(), {"tower": "joint"})
                for video, clip_TD in ({**train, **some}).items()
            },
        )


def seconds(annotated: Annotated) -> list[float]:
    """One frame a second."""
    return [n + 0.5 for n in range(max(1, round(annotated.duration or 0)))]


def actions(joint: JointSpace, texts: Sequence[str], frames: int) -> Tensor:
    """Unit vectors of recognised actions, five seconds each; zero beyond them."""
    seen_TD = torch.zeros(frames, joint.width)
    for n, text in enumerate(texts):
        seen_TD[5 * n : 5 * n + 5] = normalize(joint.words(text), dim=0)
    return seen_TD


def pictured(
    annotated: Annotated,
    target: Mapping[str, Tensor],
    images: Images,
    real: Mapping[tuple[str, str], Tensor],
    video: str,
    dice: torch.Generator,
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
    seen_TD = images.stand_in(caption_TD, dice)
    for n, row in known.items():
        seen_TD[n] = row
    return seen_TD


def _centre(rgb_HWC: NDArray[np.uint8], size: int = EfficientNetLite.size) -> NDArray[np.uint8]:
    top, left = ((side - size) // 2 for side in rgb_HWC.shape[:2])
    return rgb_HWC[top : top + size, left : left + size]


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"./{name}")
    assert file is not None
    return file.read()


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


def _captions(videos: Mapping[str, Annotated]) -> list[str]:
    return [text for annotated in videos.values() for text in annotated.sentences]


def _all_speech(corpus: youcook2.Corpus) -> list[str]:
    return sorted({text for sentences in corpus.untimed.values() for text in sentences})


def _spoken(videos: Mapping[str, Annotated], speech: Mapping[str, Sequence[Sentence]]) -> list[str]:
    return [one.text for video in videos for one in speech.get(video, ())]


def _write_texts(
    out: Path, corpus: youcook2.Corpus, speech: Mapping[str, Sequence[Sentence]]
) -> None:
    ids, some = sorted(corpus.validation), sorted(corpus.train)[::8]
    practice = youcook2.extracts(corpus.train, speech)
    for name, videos in (
        ("train", corpus.train),
        ("eighth", {video: corpus.train[video] for video in some}),
        ("extracts", {video: practice[video] for video in sorted(practice)[::2]}),
        ("validation", corpus.validation),
        ("choose", {video: corpus.validation[video] for video in ids[: youcook2.CHOOSING]}),
        ("report", {video: corpus.validation[video] for video in ids[youcook2.CHOOSING :]}),
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
