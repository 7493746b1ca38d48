"""Training of the set prediction methods (PDVC, CM²) in the same loop as STaRC.

In: a recipe of recipes.METHODS and the files of `starc train`. The width of the features and the
vocabulary come from the data: --tokenizer may name a published vocabulary, otherwise it is made of
the training captions. The datastore is the memory bank of CM².
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from starc.errors import DatastoreError
from starc.methods import folder as method_folder
from starc.methods.matching import Target
from starc.methods.set_prediction import Annotated, SetPredictor, VideoBatch, pad_videos
from starc.methods.settings import PdvcConfig
from starc.methods.words import Words
from starc.model.inputs import Example
from starc.retrieval.datastore import open_datastore
from starc.training.dataset import Videos
from starc.training.loop import Task, Training
from starc.training.recipes import SetRecipe
from starc_eval.annotations import VideoAnnotation

UNUSED = ("transformer.pos_trans", "deformable_att.attention_weights", "deformable_att.output_proj")
"""Parameters of published files that training with learned queries never reaches."""


class SetLosses(NamedTuple):
    """Weighted sums over decoder layers; `total` is their sum."""

    total: Tensor
    classes: Tensor
    boxes: Tensor
    counter: Tensor
    captions: Tensor


@dataclass(frozen=True, slots=True)
class SetBatch:
    """Annotated videos, padded."""

    ids: tuple[str, ...]
    videos: VideoBatch
    annotated: tuple[Annotated, ...]

    def to(self, device: torch.device | str) -> SetBatch:
        return SetBatch(
            self.ids, self.videos.to(device), tuple(one.to(device) for one in self.annotated)
        )


class SetCollator:
    """Examples as a `SetBatch`."""

    def __init__(self, config: PdvcConfig, words: Words) -> None:
        self.config, self.words = config, words

    def __call__(self, examples: Sequence[Example], *, epoch: int = 0) -> SetBatch:
        return SetBatch(
            tuple(one.id for one in examples),
            pad_videos(
                [one.clip_TD for one in examples], [one.duration for one in examples], self.config
            ),
            tuple(self._annotated(one) for one in examples),
        )

    def _annotated(self, example: Example) -> Annotated:
        ids = [
            torch.tensor(self.words.encode(event.caption, self.config.caption_words))
            for event in example.events
        ]
        word_ES = pad_sequence(ids, batch_first=True) if ids else torch.zeros(0, 2).long()
        lengths = torch.tensor([len(each) for each in ids]).view(-1, 1)
        box_E2 = torch.tensor(
            [[(one.start + one.end) / 2, one.end - one.start] for one in example.events]
        ).view(-1, 2)
        target = Target(box_E2 / example.duration, torch.zeros(len(ids), dtype=torch.long))
        return Annotated(target, word_ES, torch.arange(word_ES.shape[1]) < lengths)


class TrainedSetPredictor(SetPredictor):
    """A model whose forward pass gives its losses, as the loop needs it."""

    def forward(  # type: ignore[override]
        self, batch: SetBatch, store: None = None, share: Tensor | None = None
    ) -> SetLosses:
        """`share` weights the losses of events, videos and captions, as `counts` orders them."""
        losses, _ = self.losses(self.decode(batch.videos), batch.annotated)
        events, videos, captions = torch.ones(3) if share is None else share

        def weighted(*names: str) -> Tensor:
            chosen = {k: v for k, v in losses.items() if k.startswith(names)}
            return self.total(chosen)

        parts = (
            weighted("loss_ce") * events,
            weighted("loss_bbox", "loss_giou") * events,
            weighted("loss_counter") * videos,
            weighted("loss_caption") * captions,
        )
        return SetLosses(torch.stack(parts).sum(), *parts)


class SetTraining(Training):
    """The loop with what is particular to set prediction."""

    @property
    def window(self) -> float:
        return 0.0

    def make_optimiser(self, model: Any, fresh: Collection[str]) -> torch.optim.Optimizer:
        """Adam with the decay added to the gradient, as published; one group."""
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.Adam(
            [{"params": learned, "scale": 1.0}],
            lr=self.config.learning_rate,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
        )

    def counts(self, part: SetBatch) -> Tensor:
        events = [len(one.target.box_E2) for one in part.annotated]
        queries = self.task.collate.config.queries
        captions = sum(min(number, queries) for number in events)
        return torch.tensor([float(sum(events)), float(len(events)), float(captions)])

    def after_step(self, model: Any) -> None: ...

    def predict(self, videos: Videos, indices: Iterable[int]) -> dict[str, VideoAnnotation]:
        return predict(self.accelerator.unwrap_model(self.model), videos, indices)

    def read_weights(self, folder: Path) -> Mapping[str, Tensor]:
        return method_folder.load(folder).state_dict()

    def write_model(self, folder: Path, model: Any) -> None:
        method_folder.save(folder, model)


def predict(
    model: SetPredictor, videos: Videos, indices: Iterable[int]
) -> dict[str, VideoAnnotation]:
    """Predicted events of videos, as the evaluator takes them."""
    predictions = {}
    for index in indices:
        video = videos.inputs(index)
        events = model.caption(video.features_TD, video.duration)
        predictions[video.id] = VideoAnnotation(
            tuple((event.start, event.end) for event in events),
            tuple(event.caption for event in events),
            video.duration,
        )
    return predictions


def prepare(
    recipe: SetRecipe,
    train: Videos,
    validation: Videos | None,
    vocabulary: Path | None,
    datastore: Path | None,
) -> tuple[SetRecipe, Task, SetPredictor]:
    """The recipe with the sizes of the data, what the loop works on, and a fresh model."""
    captions = [text for all_ in train.accounts.values() for one in all_ for text in one.sentences]
    words = Words.read(vocabulary) if vocabulary else Words.of(captions)
    width = train.features[train.ids[0]].shape[1]
    text, bank_ND = recipe.model.text, None
    if text is not None:
        if datastore is None:
            raise DatastoreError(
                "--datastore: this recipe retrieves captions; build one (starc datastore build)"
            )
        bank_ND = open_datastore(str(datastore)).exact.embedding_ND.float()
        if bank_ND.shape[1] != width:
            raise DatastoreError(
                f"{datastore}: captions are {bank_ND.shape[1]} wide, the features {width}; build "
                "it with the text encoder that belongs to the features"
            )
        text = replace(text, width=width)
    model = replace(recipe.model, features=width, vocabulary=len(words), text=text)
    recipe = replace(recipe, model=model)
    torch.manual_seed(recipe.train.seed)
    fresh = TrainedSetPredictor(model, words)
    fresh.bank_ND = bank_ND
    for name, parameter in fresh.named_parameters():
        if any(unused in name for unused in UNUSED):
            parameter.requires_grad_(False)
    return recipe, Task(train, validation, None, SetCollator(model, words)), fresh
