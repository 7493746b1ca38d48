"""From videos to batches."""

import dataclasses

import pytest
import torch

from starc.config import Config
from starc.errors import VideoError
from starc.model.inputs import Collator
from starc.types import Event
from support.small_training import recipe, tokenizer, videos


def collator(config: Config | None = None) -> Collator:
    config = config or recipe().model
    loss = dataclasses.replace(config.loss, corrupted_span=1.0)
    return Collator(dataclasses.replace(config, loss=loss), tokenizer())


def test_long_videos_are_thinned_out_evenly() -> None:
    long = dataclasses.replace(videos()[0], clip_TD=torch.arange(60.0)[:, None].expand(60, 16))
    batch = collator()([long])
    assert batch.clip_BTD[0, :, 0].tolist() == [j * 60 // 24 for j in range(24)]


def test_a_batch_for_training() -> None:
    examples = [videos()[0], dataclasses.replace(videos()[1], clip_TD=videos()[1].clip_TD[:7])]
    batch = collator()(examples, epoch=0)
    assert batch.ids == ("video0", "video1")
    assert batch.frame_mask_BT.sum(1).tolist() == [24, 7]
    assert not batch.clip_BTD[1, 7:].any()
    assert batch.salient_BT is not None
    assert batch.salient_BT[0].tolist() == [t % 8 < 6 for t in range(24)]
    assert not batch.salient_BT[1, 7:].any()
    assert batch.target_BL is not None and batch.target_BL.max() < 165
    assert collator()(examples).target_BL is None


def test_published_labels_are_stretched_over_padding() -> None:
    model = recipe().model
    assert model.saliency is not None
    stretched = dataclasses.replace(
        model,
        mask_padding=False,
        saliency=dataclasses.replace(model.saliency, align_labels=False),
    )
    short = dataclasses.replace(videos()[0], clip_TD=videos()[0].clip_TD[:7])
    batch = collator(stretched)([short], epoch=0)
    assert batch.salient_BT is not None
    assert batch.salient_BT.shape == (1, 24)
    assert batch.salient_BT[0].tolist() == [t % 8 < 6 for t in range(24)]


def test_what_is_hidden_follows_from_video_and_epoch() -> None:
    first, again, later = (collator()([videos()[2]], epoch=epoch) for epoch in (0, 0, 1))
    assert first.denoising_speech_BL is not None and later.denoising_speech_BL is not None
    assert again.denoising_speech_BL is not None
    assert torch.equal(first.denoising_speech_BL, again.denoising_speech_BL)
    assert not torch.equal(first.denoising_speech_BL, later.denoising_speech_BL)
    beside = collator()([videos()[1], videos()[2]], epoch=0)
    assert beside.denoising_target_BL is not None and first.denoising_target_BL is not None
    row = beside.denoising_target_BL[1]
    assert row[row != 0].tolist() == first.denoising_target_BL[0].tolist()


@pytest.mark.parametrize(
    ("clip", "says"),
    [(torch.zeros(0, 16), "no frames"), (torch.zeros(4, 9), "the model needs")],
)
def test_bad_features_are_named(clip: torch.Tensor, says: str) -> None:
    with pytest.raises(VideoError, match=f"video0: .*{says}"):
        collator()([dataclasses.replace(videos()[0], clip_TD=clip)])


def test_events_come_back() -> None:
    made = collator()
    example = videos()[0]
    ids = made.target(example)

    class Said:
        log_probabilities = (0.0,) * len(ids)

        def __init__(self) -> None:
            self.ids = tuple(ids)

    found = made.events(Said(), example.duration)  # type: ignore[arg-type]
    assert [event.start for event in found] == [event.start for event in example.events]
    assert all(isinstance(event, Event) and event.confidence == 1.0 for event in found)
