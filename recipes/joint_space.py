"""The joint space of speech, pictures and captions, fitted on YouCook2 (starc.media.joint).

In: training videos with their speech, frames of some of them, embeddings of the captions. Out: the
small tokenizer, a vector per token (`Words`) and a matrix for image features (`Images`). Whatever a
map says about a training video must come from a map fitted without it: `fit` leaves out a fold.

Frames of YouCook2 are at hand for three segments of 600 videos only. Where there are none a
stand-in is drawn: the caption of the step, moved and blurred as images are against captions,

    seen = unit(m + t A + .35 e),   e ~ N(0, covariance of the residuals)

with m, A and the covariance fitted on training frames that the image map had not seen.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import scipy.linalg
import scipy.sparse
import torch
import youcook2_data as youcook2
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import normalize

from starc.media.encoders import EfficientNetLite, MiniLM
from starc.model.joint_space import REACH
from starc.types import Frame, Sentence
from starc_eval.annotations import VideoAnnotation

FOLDS = 5


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
    encoder = MiniLM()
    table_VD = encoder.model.embeddings.word_embeddings.weight.detach()
    rows = torch.zeros(tokenizer.get_vocab_size(), table_VD.shape[1])
    for piece, row in tokenizer.get_vocab().items():
        known = encoder.tokenizer.token_to_id(piece)
        if known is not None:
            rows[row] = table_VD[known]
    save_file({"word": rows}, path)


class Words:
    """The map of words: ridge regression from bags of tokens to embeddings of captions."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: Mapping[str, VideoAnnotation],
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
    """What is said in or near a step, with weights as in `JointSpace.encode_speech`."""
    away = [(one.text, max(one.start - end, start - one.end, 0.0)) for one in sentences]
    return [(text, 1 - distance / REACH) for text, distance in away if distance < REACH]


class Images:
    """The map of images, and how images differ from captions."""

    def __init__(
        self,
        path: Path,
        train: Mapping[str, VideoAnnotation],
        target: Mapping[str, Tensor],
        fold: Mapping[str, int],
    ) -> None:
        pictures, captions, self.videos = read_frames(path, train)
        self.captions = captions
        raw_NI = EfficientNetLite().encode(pictures)
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

    def stand_in(self, caption_ND: Tensor, rng: torch.Generator) -> Tensor:
        """Unit vectors as pictures of these captions (zero: of nothing) would give them."""
        given = torch.cat([caption_ND, torch.ones(len(caption_ND), 1)], dim=1).double()
        noise = torch.randn(caption_ND.shape, generator=rng, dtype=torch.float64)
        seen_ND = given @ self.gap + 0.35 * noise @ self.spread.T
        return normalize(seen_ND, dim=1).float()


def read_frames(
    path: Path, train: Mapping[str, VideoAnnotation]
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


def _centre(rgb_HWC: NDArray[np.uint8], size: int = EfficientNetLite.size) -> NDArray[np.uint8]:
    top, left = ((side - size) // 2 for side in rgb_HWC.shape[:2])
    return rgb_HWC[top : top + size, left : left + size]


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"./{name}")
    assert file is not None
    return file.read()
