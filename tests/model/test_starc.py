"""The whole model: published numbers, padding, losses, ablations, bad input, overfitting."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from starc import config as configs
from starc.config import (
    BeamSearch,
    LlamaConfig,
    LossConfig,
    PromptConfig,
    RetrievalConfig,
    SaliencyConfig,
    SegmentsConfig,
    SwsaConfig,
    TransportConfig,
)
from starc.errors import DatastoreError, VideoError
from starc.model import segments
from starc.model.starc import Batch, STaRC
from support.scripts import script
from support.tiny import batch, one, store, tiny

QUICK = BeamSearch(beams=2, max_tokens=6)


def model(**parts: object) -> STaRC:
    torch.manual_seed(0)
    return STaRC(tiny(**parts))


# Parity -----------------------------------------------------------------------------------------


def test_published_numbers_from_our_own_copy(data: Path) -> None:
    reports = list(script("parity").run(data / "model"))
    assert [report.case for report in reports] == [
        "case_F100_B1",
        "case_F50_B2",
        "case_padding_F50_B2_topk12",
    ]
    for report in reports:
        assert report.ok, report.line()
    assert {"beam4_ids", "greedy_ids", "segments", "retrieved"} <= set(reports[0].equal)


def test_published_numbers_of_every_case(shared: Path) -> None:
    parity, folder = script("parity"), shared / "parity/model"
    published, bank = parity.load_model(folder), parity.load_store(folder)
    for name in ("F100_B4", "F75_B3", "F160_B2"):
        report = parity.compare_case(folder / f"case_{name}.pt", published, bank)
        assert report.ok, report.line()


def test_the_published_training_step(shared: Path) -> None:
    parity, folder = script("parity"), shared / "parity/model"
    path = folder / "train_step_F100_B4.pt"
    report = parity.compare_step(folder, path, parity.load_store(folder))
    assert report.ok, report.line()
    # Below Adam's eps a published step is rounding noise over eps: few entries, and small.
    assert report.notes["entries_below"] < 1000
    assert report.notes["state_where_gradient_below_adam_eps"] < 1e-3


# Padding and neighbours -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["transport", "adaptive"])
def test_a_video_alone_is_the_same_video_among_longer_ones(method: str) -> None:
    chosen = SegmentsConfig(method=method)  # type: ignore[arg-type]
    starc, captions, whole = model(segments=chosen).eval(), store(), batch((13, 40, 31, 120))
    alone = one(whole, 0)
    for inference in (False, True):
        with torch.no_grad():
            among, single = (
                starc.encode(it, captions, inference=inference) for it in (whole, alone)
            )
        near = {"atol": 2e-4, "rtol": 1e-3}
        for name in ("video_BTD", "refined_BTD", "saliency_BT", "prompt_BTD"):
            padded, exact = getattr(among.video, name), getattr(single.video, name)
            torch.testing.assert_close(padded[0, :13], exact[0], **near)
        if among.video.plan is not None and single.video.plan is not None:
            padded, exact = among.video.plan.mass_BTK, single.video.plan.mass_BTK
            torch.testing.assert_close(padded[0, :13], exact[0], **near)
            assert not padded[0, 13:].any()
        assert [(it.first, it.stop, it.anchor) for it in among.video.segments[0]] == [
            (it.first, it.stop, it.anchor) for it in single.video.segments[0]
        ]
        for ours, theirs in zip(among.video.segments[0], single.video.segments[0], strict=True):
            assert [it.caption for it in ours.captions] == [it.caption for it in theirs.captions]
        memory_MD = among.memory_BMD[0][among.memory_mask_BM[0]]
        torch.testing.assert_close(
            memory_MD, single.memory_BMD[0][single.memory_mask_BM[0]], **near
        )
    search = BeamSearch(beams=3, max_tokens=12)
    found = [starc.generate([it], captions, search)[0].decoded[0] for it in (whole, alone)]
    assert found[0].ids == found[1].ids
    assert found[0].score == pytest.approx(found[1].score, abs=1e-3)


def test_losses_of_a_batch_are_those_of_its_videos() -> None:
    starc, captions, whole = model().eval(), store(), batch((13, 40, 31))
    with torch.no_grad():
        together = starc(whole, captions)
        alone = [starc(one(whole, video), captions) for video in range(3)]

    def mean(name: str, weights: torch.Tensor) -> torch.Tensor:
        values = torch.stack([getattr(losses, name) for losses in alone])
        return (values * weights).sum() / weights.sum()

    assert whole.target_BL is not None and whole.denoising_target_BL is not None
    for name, weights in (
        ("caption", (whole.target_BL != 0).sum(1)),
        ("denoising", (whole.denoising_target_BL != 0).sum(1)),
        ("saliency", torch.ones(3)),
        ("anchors", whole.frame_mask_BT.sum(1)),
    ):
        torch.testing.assert_close(
            getattr(together, name), mean(name, weights), atol=1e-3, rtol=1e-3, msg=name
        )


def test_fewer_segments_than_the_neighbours_means_fewer_retrieval_tokens() -> None:
    whole = batch((2, 40))
    for mask_missing in (True, False):
        starc = model(retrieval=RetrievalConfig(mask_missing=mask_missing)).eval()
        seen = starc.encode(whole, store()).video
        assert seen.retrieved_mask_BS is not None
        counts = [len(segments.ranked(found)) for found in seen.segments]
        assert counts[0] <= 2 < counts[1] == 5
        wanted = counts if mask_missing else [5, 5]
        assert seen.retrieved_mask_BS.sum(1).tolist() == wanted


# The parts --------------------------------------------------------------------------------------

ABLATIONS: dict[str, dict[str, object]] = {
    "vid2seq": {"swsa": None, "saliency": None, "retrieval": None, "prompt": None},
    "without SWSA": {"swsa": None},
    "without SGSR": {"retrieval": None},
    "without SaliP": {"prompt": None},
    "zero prompts": {"prompt": PromptConfig(scores="zero")},
    "noisy prompts": {"prompt": PromptConfig(scores="noise")},
    "uniform": {"segments": SegmentsConfig(method="uniform")},
    "adaptive": {"segments": SegmentsConfig(method="adaptive")},
    "k-means": {"segments": SegmentsConfig(method="kmeans")},
    "uniform pooling": {"segments": SegmentsConfig(pooling="uniform")},
    "balanced": {"transport": TransportConfig(frames="balanced", projection_steps=5)},
    "both relaxed": {"transport": TransportConfig(anchor_marginal="relaxed")},
    "as ASOT": {"transport": TransportConfig(frames="balanced", anchor_marginal="relaxed")},
    "retrieval without saliency": {"saliency": None, "prompt": None},
    "second pass": {"saliency": SaliencyConfig(second_pass=True, standardise=True)},
    "one window": {"swsa": SwsaConfig(sizes=(8,), stride=3)},
    "no denoising": {"loss": LossConfig(denoising_weight=0.0)},
    "more anchors": {"transport": TransportConfig(anchors=10, temporal_prior=0.1)},
}


@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_every_part_can_be_changed(name: str) -> None:
    starc, captions, whole = model(**ABLATIONS[name]), store(), batch()
    losses = starc(whole, captions)
    losses.total.backward()
    assert losses.total.isfinite()
    for parameter in starc.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    starc.eval()
    (generated,) = starc.generate([whole], captions, QUICK)
    assert len(generated.decoded) == 2
    parts = {
        "prompt_projection": starc.config.prompt,
        "retrieved_projection": starc.config.retrieval,
    }
    frames = 30 * (2 if starc.config.prompt else 1)
    tokens = frames + (5 if starc.config.retrieval else 0) + whole.speech_BL.shape[1]
    assert generated.encoded.memory_BMD.shape == (2, tokens, 64)
    for module, part in parts.items():
        assert (getattr(starc, module) is None) == (part is None)


def test_vid2seq_is_its_two_parts() -> None:
    config = dataclasses.replace(tiny(), swsa=None, saliency=None, retrieval=None, prompt=None)
    config = dataclasses.replace(
        config, temporal=dataclasses.replace(config.temporal, projection=False)
    )
    starc = STaRC(config)
    assert {name.split(".")[0] for name, _ in starc.named_parameters()} == {"temporal", "t5"}
    whole = batch()
    encoded = starc.eval().encode(whole, None)
    video_BTD = starc.temporal(whole.clip_BTD, whole.frame_mask_BT)
    torch.testing.assert_close(encoded.memory_BMD[:, :30], video_BTD)
    assert encoded.video.segments == [[], []]


def test_training_sees_x_and_inference_x_refined() -> None:
    whole, captions = batch(), store()
    starc = model().eval()
    x_BTD = starc.encode_frames(whole)
    assert torch.equal(starc.encode(whole, captions).video.video_BTD, x_BTD)
    seen = starc.encode(whole, captions, inference=True).video
    assert torch.equal(seen.video_BTD, seen.refined_BTD)
    # Published: the second pass; and X where prompts are off.
    second = SaliencyConfig(second_pass=True)
    starc = model(saliency=second).eval()
    seen = starc.encode(whole, captions, inference=True).video
    again = starc.temporal(seen.refined_BTD, whole.frame_mask_BT)
    torch.testing.assert_close(seen.video_BTD, again)
    starc = model(saliency=second, prompt=None).eval()
    seen = starc.encode(whole, captions, inference=True).video
    torch.testing.assert_close(seen.video_BTD, starc.encode_frames(whole))


@pytest.mark.parametrize("second_pass", [False, True])
def test_the_decoder_may_see_x_both_times(second_pass: bool) -> None:
    starc = model(decoder_video="plain", saliency=SaliencyConfig(second_pass=second_pass)).eval()
    whole = batch()
    x_BTD = starc.encode_frames(whole)
    assert torch.equal(starc.encode_video(x_BTD, whole, store(), inference=True).video_BTD, x_BTD)


def test_saliency_counts_once_or_in_both_passes() -> None:
    whole, captions = batch(), store()
    once = model(loss=LossConfig(saliency_weight=2.0, anchor_weight=0.0)).eval()(whole, captions)
    assert once.saliency is not None and once.denoising is not None
    wanted = once.caption + 2 * once.saliency + once.denoising
    torch.testing.assert_close(once.total, wanted)
    settings = LossConfig(saliency_weight=2.0, anchor_weight=0.0, saliency_in_denoising=True)
    twice = model(loss=settings).eval()(whole, captions)
    torch.testing.assert_close(twice.total, wanted + 2 * once.saliency)
    lighter = LossConfig(saliency_weight=2.0, anchor_weight=0.0, denoising_weight=0.5)
    half = model(loss=lighter).eval()(whole, captions)
    torch.testing.assert_close(half.total, wanted - 0.5 * once.denoising)


def test_anchors_learn_only_where_they_should() -> None:
    whole, captions = batch(), store()
    for weight, learns in ((0.1, True), (0.0, False)):
        starc = model(loss=LossConfig(anchor_weight=weight))
        losses = starc(whole, captions)
        losses.total.backward()
        assert starc.anchor_KD is not None
        assert (starc.anchor_KD.grad is not None) == learns == (losses.anchors is not None)


def test_own_captions_are_hidden_in_training_only() -> None:
    whole, captions = batch(), store(25)

    def videos(starc: STaRC, *, inference: bool) -> set[str]:
        found = starc.encode(whole, captions, inference=inference).video.segments[0]
        names = [hit.caption for it in found for hit in it.captions]
        return {f"video{int(name.split()[1]) % 5}" for name in names}

    starc = model(retrieval=RetrievalConfig(captions=20)).eval()
    assert "video0" not in videos(starc, inference=False)
    assert "video0" in videos(starc, inference=True)
    leaky = model(retrieval=RetrievalConfig(captions=20, exclude_own=False)).eval()
    assert "video0" in videos(leaky, inference=False)


def test_segments_carry_what_was_retrieved() -> None:
    seen = model().eval().encode(batch(), store(), inference=True).video
    for found in seen.segments:
        assert sum(it.kept for it in found) == min(5, len(found))
        for it in found:
            assert len(it.captions) == (10 if it.kept else 0)
            similarities = [hit.similarity for hit in it.captions]
            assert similarities == sorted(similarities, reverse=True)


@pytest.mark.parametrize("decoder", ["t5", "causal"])
def test_retrieved_captions_are_read_as_words(decoder: str) -> None:
    llama = LlamaConfig(
        width=64, feed_forward=96, layers=2, heads=4, key_value_heads=2, head_width=16, words=1200
    )
    parts = {} if decoder == "t5" else {"llama": llama}
    starc = model(retrieval=RetrievalConfig(form="text", text_tokens=11), **parts).eval()
    assert starc.retrieved_projection is None
    read: list[str] = []

    def encode(text: str) -> list[int]:
        read.append(text)
        return [2 + int(text.split()[1]), 99, 100]

    whole = dataclasses.replace(batch(), encode=encode)
    encoded = starc.encode(whole, store(), inference=True)
    assert encoded.video.retrieved_BSD is not None and encoded.video.retrieved_BSD.shape[1] == 11
    nearest = [
        hit.caption for it in segments.ranked(encoded.video.segments[0]) for hit in it.captions[:2]
    ]
    assert read[: len(set(nearest))] == list(dict.fromkeys(nearest))
    (generated,) = starc.generate([whole], store(), QUICK)
    assert len(generated.decoded) == 2
    starc(whole, store()).total.backward()
    alone = starc.encode(one(whole, 1), store(), inference=True)
    assert alone.video.retrieved_BSD is not None
    torch.testing.assert_close(
        alone.video.retrieved_BSD[0], encoded.video.retrieved_BSD[1], atol=1e-4, rtol=1e-4
    )
    with pytest.raises(ValueError, match="needs `encode`"):
        starc.encode(batch(), store())


def test_features_of_another_width_come_in_through_a_projection() -> None:
    config = dataclasses.replace(tiny(), temporal=dataclasses.replace(tiny().temporal, features=32))
    starc, whole = STaRC(config), batch()
    narrow = dataclasses.replace(whole, clip_BTD=whole.clip_BTD[..., :32])
    small = store()
    small = type(small)(small.captions, small.embedding_ND[:, :32], videos=small.videos)
    assert starc(narrow, small).total.isfinite()
    assert starc.anchor_KD is not None and starc.anchor_KD.shape == (8, 32)


def test_recomputing_changes_no_gradient() -> None:
    whole, captions, gradients = batch(), store(), []
    for recompute in (False, True):
        torch.manual_seed(0)
        config = tiny()
        starc = STaRC(
            dataclasses.replace(config, t5=dataclasses.replace(config.t5, recompute=recompute))
        ).train()
        starc(whole, captions).total.backward()
        gradients.append({name: it.grad for name, it in starc.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


# Learning ---------------------------------------------------------------------------------------


def test_a_few_videos_are_learnt_by_heart() -> None:
    time, end = 1100, 1
    wanted = [
        [time + 3, time + 20, 7, 8, 9, time + 30, time + 60, 11, 12, end],
        [time + 5, time + 40, 21, 22, 23, end],
        [time, time + 50, 31, 32, time + 50, time + 90, 33, 34, 35, end],
    ]
    target_BL = torch.zeros(3, 10, dtype=torch.long)
    for row, ids in enumerate(wanted):
        target_BL[row, : len(ids)] = torch.tensor(ids)
    whole, captions = dataclasses.replace(batch((30, 17, 24)), target_BL=target_BL), store()
    # X for X': what the decoder learnt by heart is what it sees again.
    starc = model(decoder_video="plain").train()
    assert starc.anchor_KD is not None
    start_KD = starc.anchor_KD.detach().clone()
    optimiser = torch.optim.Adam(starc.parameters(), lr=3e-3)
    for _ in range(50):
        optimiser.zero_grad()
        starc(whole, captions).total.backward()
        torch.nn.utils.clip_grad_norm_(starc.parameters(), 1.0)
        optimiser.step()
        starc.t5.rescale_time_embeddings()
    starc.eval()
    for beams in (1, 4):
        search = BeamSearch(beams=beams, max_tokens=20)
        decoded = starc.generate([whole], captions, search)[0].decoded
        assert [list(it.ids) for it in decoded] == wanted
    assert (starc.anchor_KD - start_KD).abs().max() > 0.01
    # Saliency has learnt the labels it was shown.
    seen = starc.encode(whole, captions).video
    assert seen.saliency_BT is not None and whole.salient_BT is not None
    inside = seen.saliency_BT[whole.salient_BT].mean()
    assert inside > seen.saliency_BT[whole.frame_mask_BT & ~whole.salient_BT].mean() + 0.5


# Bad input --------------------------------------------------------------------------------------


def test_features_of_the_wrong_width() -> None:
    whole = batch()
    wide = dataclasses.replace(whole, clip_BTD=torch.randn(2, 30, 65))
    with pytest.raises(VideoError, match="video0: features are 65 wide, the model needs 64"):
        model().encode(wide, store())


def test_an_empty_video() -> None:
    whole = batch()
    mask_BT = whole.frame_mask_BT.clone()
    mask_BT[1] = False
    with pytest.raises(VideoError, match="video1: no frames"):
        dataclasses.replace(whole, frame_mask_BT=mask_BT)
    with pytest.raises(VideoError, match="video0: no frames"):
        Batch(
            ids=("video0",),
            clip_BTD=torch.zeros(1, 0, 64),
            frame_mask_BT=torch.zeros(1, 0, dtype=torch.bool),
            speech_BL=torch.ones(1, 1, dtype=torch.long),
            speech_mask_BL=torch.ones(1, 1, dtype=torch.bool),
        )


def test_features_that_are_not_numbers() -> None:
    whole = batch()
    broken = whole.clip_BTD.clone()
    broken[1, 3, 5] = float("nan")
    with pytest.raises(VideoError, match="video1: features contain NaN"):
        dataclasses.replace(whole, clip_BTD=broken)


@pytest.mark.parametrize("preset", ["paper", "published"])
def test_one_frame_and_no_speech(preset: str) -> None:
    whole = batch((1,))
    silent = torch.ones(1, 1, dtype=torch.long)
    whole = dataclasses.replace(
        whole,
        speech_BL=silent,
        speech_mask_BL=silent.bool(),
        denoising_speech_BL=torch.zeros(1, 1, dtype=torch.long),
        denoising_target_BL=silent,
    )
    base, sizes = configs.preset(preset), tiny()
    starc = STaRC(dataclasses.replace(base, temporal=sizes.temporal, t5=sizes.t5))
    assert starc(whole, store()).total.isfinite()
    (generated,) = starc.eval().generate([whole], store(), QUICK)
    assert [(it.first, it.stop) for it in generated.encoded.video.segments[0]] == [(0, 1)]


def test_more_segments_asked_than_exist() -> None:
    starc = model(segments=SegmentsConfig(top_k=1000)).eval()
    seen = starc.encode(batch(), store()).video
    assert seen.retrieved_BSD is not None
    assert seen.retrieved_BSD.shape[1] == max(len(found) for found in seen.segments)
    assert all(it.kept for found in seen.segments for it in found)


def test_an_empty_datastore() -> None:
    with pytest.raises(DatastoreError, match="retrieval is on but the datastore is empty"):
        model()(batch(), None)
    # Fewer captions than asked for: all of them.
    starc = model(retrieval=RetrievalConfig(exclude_own=False)).eval()
    seen = starc.encode(batch(), store(3)).video
    assert {len(it.captions) for it in segments.ranked(seen.segments[0])} == {3}


def test_a_batch_that_does_not_fit_its_use() -> None:
    whole = batch()
    with pytest.raises(ValueError, match="batch has no target_BL"):
        model()(dataclasses.replace(whole, target_BL=None), store())
    with pytest.raises(ValueError, match=r"salient_BT must begin \(2, 30\), got \(2, 29\)"):
        dataclasses.replace(whole, salient_BT=torch.zeros(2, 29))
    with pytest.raises(ValueError, match="real frames must come before padding"):
        dataclasses.replace(whole, frame_mask_BT=whole.frame_mask_BT.flip(1))


def test_a_batch_moves_whole() -> None:
    moved = batch().to("cpu")
    assert moved.ids == batch().ids and set(moved.tensors()) == set(batch().tensors())


def test_noise_prompts_are_a_videos_own() -> None:
    model = STaRC(tiny(prompt=configs.PromptConfig(scores="noise"))).eval()
    saliency_BT = torch.zeros(2, 5)
    first, again = (model.prompt(saliency_BT, ["a", "b"]) for _ in range(2))
    swapped = model.prompt(saliency_BT, ["b", "a"])
    assert first is not None and again is not None and swapped is not None
    assert torch.equal(first, again) and torch.equal(first, swapped.flip(0))
    assert not torch.equal(first[0], first[1])
    model.train()
    drawn = model.prompt(saliency_BT, ["a", "b"])
    assert drawn is not None and not torch.equal(drawn, first)
