"""Parts of the set prediction methods, against simple definitions of what they compute."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from starc import methods
from starc.errors import CheckpointError, ConfigError, DatastoreError
from starc.methods import folder, settings
from starc.methods.deformable import sample
from starc.methods.matching import assignment
from starc.methods.proposals import Proposal, rerank, to_events
from starc.methods.retrieval import retrieve
from starc.methods.set_prediction import SetPredictor, pad_videos, resample
from starc.methods.settings import TextConfig
from starc.methods.words import Words
from starc.training.loop import rate
from starc.training.recipes import METHODS

SMALL = {"width": 32, "feed_forward": 32, "heads": 2, "queries": 5, "features": 8, "frames": 16}
SMALL |= {"word_width": 8, "rnn_width": 32, "caption_attention": 8, "caption_words": 6}
WORDS = Words.of(["crack the eggs", "heat the pan"])


def small(name: str, **changes: object) -> SetPredictor:
    text = TextConfig(width=8, windows=3, captions=2) if name == "cm2" else None
    torch.manual_seed(0)
    model = methods.build(name, WORDS, **SMALL | {"text": text} | changes)
    if text is not None:
        model.bank_ND = torch.randn(9, 8, generator=torch.Generator().manual_seed(1))
    return model.eval()


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6), (6, 0)])
def test_assignment_has_minimum_cost(shape: tuple[int, int]) -> None:
    for seed in range(20):
        cost = np.random.default_rng(seed).normal(size=shape)
        rows, columns = assignment(cost)
        assert list(rows) == sorted(set(rows)) and len(set(columns)) == len(rows) == min(shape)
        tall = cost if shape[0] <= shape[1] else cost.T
        least = min(
            sum(tall[row, column] for row, column in enumerate(chosen))
            for chosen in permutations(range(tall.shape[1]), tall.shape[0])
        )
        assert cost[rows, columns].sum() == pytest.approx(least)


@pytest.mark.parametrize("padding", ["border", "zeros"])
def test_sampling_interpolates_linearly(padding: str) -> None:
    value_T = torch.tensor([1.0, 3.0, 7.0, 2.0])

    def read(position: int) -> float:
        inside = 0 <= position < 4
        return float(value_T[min(max(position, 0), 3)]) if inside or padding == "border" else 0.0

    for at in (-0.3, 0.0, 0.1, 0.3, 0.52, 0.77, 0.99, 1.2):
        found = sample(value_T.view(1, 4, 1, 1), (4,), torch.full((1, 1, 1, 1, 1), at), padding)  # type: ignore[arg-type]
        left = int(np.floor(at * 4 - 0.5))
        share = at * 4 - 0.5 - left
        assert found.item() == pytest.approx(
            (1 - share) * read(left) + share * read(left + 1), abs=1e-5
        )


def test_words_are_those_of_the_published_translator() -> None:
    words = Words(["add", "the", "oil", "UNK"])
    assert words.encode("Add the oil.", 30) == [0, 1, 2, 3, 0]
    assert words.encode("add,the olive-oil", 30) == [0, 1, 2, 4, 3, 0]
    assert words.encode("add the oil the oil", 5) == [0, 1, 2, 3, 0]
    assert words.decode([1, 3, 0, 2]) == "add oil." and words.decode([0, 1]) == ""
    assert WORDS.words == ("the", "crack", "eggs", "heat", "pan", "UNK")


def test_words_are_read_from_a_published_file(tmp_path: Path) -> None:
    file = tmp_path / "words.json"
    file.write_text('{"ix_to_word": {"1": "add", "2": "oil"}}')
    assert Words.read(file).words == ("add", "oil")
    file.write_text('{"ix_to_word": {"2": "oil"}}')
    with pytest.raises(CheckpointError, match=r"words\.json: not a vocabulary"):
        Words.read(file)


def test_features_are_resampled_to_the_nearest() -> None:
    feature_TF = torch.arange(3.0)[:, None]
    assert resample(feature_TF, 5)[:, 0].tolist() == [0, 0, 1, 1, 2]  # a half goes down
    assert resample(feature_TF, None) is feature_TF
    assert resample(feature_TF[:1], 3)[:, 0].tolist() == [0, 0, 0]


def test_rerank_keeps_the_predicted_number_in_temporal_order() -> None:
    def proposal(start: float, score: float, log: float) -> Proposal:
        return Proposal(start, start + 1, score, "one two.", log, 0, 0, 2)

    found = [proposal(5, 0.9, -9.0), proposal(3, 0.5, -0.1), proposal(1, 0.4, -0.1)]
    assert [p.start for p in rerank(found, 0.0)] == [3, 5]
    assert [p.start for p in rerank(found, 1.0)] == [1, 3]  # 0.9 - 9/4 is the worst
    first, _ = to_events(rerank(found, 0.0), ("pictures",))
    assert first.confidence == pytest.approx(np.exp(-0.05)) and first.words_from == ("pictures",)


@pytest.mark.parametrize("skip_best", [False, True])
def test_windows_retrieve_their_nearest_captions(skip_best: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    frames_BTD, bank_ND = torch.randn(1, 11, 4, generator=generator), torch.randn(9, 4)
    valid_BT = torch.arange(11)[None] < 10
    found = retrieve(
        frames_BTD,
        valid_BT,
        bank_ND,
        TextConfig(width=4, windows=3, captions=2),
        skip_best=skip_best,
    )
    for window in range(3):
        mean_D = frames_BTD[0, 3 * window : 3 * window + 3].mean(0)
        order = torch.cosine_similarity(mean_D[None], bank_ND).argsort(descending=True)
        best = order[skip_best : 2 + skip_best]
        assert found.index_BWK[0, window].tolist() == best.tolist()
        torch.testing.assert_close(found.mean_BWD[0, window], bank_ND[best].mean(0))


def test_too_few_frames_or_captions_are_an_error() -> None:
    config, valid_BT = TextConfig(width=4, windows=3, captions=2), torch.ones(1, 2).bool()
    with pytest.raises(DatastoreError, match="2 frames for 3 windows"):
        retrieve(torch.ones(1, 2, 4), valid_BT, torch.ones(9, 4), config, skip_best=False)
    with pytest.raises(DatastoreError, match="2 captions, 3 are needed"):
        retrieve(torch.ones(1, 2, 4), valid_BT, torch.ones(2, 4), config, skip_best=True)


@pytest.mark.parametrize("name", settings.METHODS)
def test_a_method_captions_and_survives_its_folder(name: str, tmp_path: Path) -> None:
    model, features_TF = small(name), torch.randn(20, 8)
    events = model.caption(features_TF, 40.0)
    assert all(0 <= event.start < event.end <= 40 for event in events)
    expected = ("pictures", "datastore") if name == "cm2" else ("pictures",)
    assert all(event.times_from == expected for event in events)
    folder.save(tmp_path / "model", model)
    again = methods.load(tmp_path / "model")
    assert again.config == model.config and again.words.words == WORDS.words
    assert again.caption(features_TF, 40.0) == events
    folder.save(tmp_path / "model", model)  # its own folder may be replaced


def test_a_padded_batch_with_one_length_equals_single_videos() -> None:
    model = small("pdvc")
    features = [torch.randn(n, 8) for n in (20, 31)]
    both = model.propose(pad_videos(features, [40.0, 62.0], model.config))
    for one, found, seconds in zip(features, both, (40.0, 62.0), strict=True):
        (alone,) = model.propose(pad_videos([one], [seconds], model.config))
        assert [p.query for p in found] == [p.query for p in alone]
        assert [p.sentence for p in found] == [p.sentence for p in alone]


def test_given_proposals_keep_their_boxes() -> None:
    model, box_BQ2 = small("pdvc"), torch.tensor([[[0.2, 0.1], [0.7, 0.3]]])
    videos = pad_videos([torch.randn(20, 8)], [40.0], model.config)
    decoded = model(replace(videos, proposal_BQ2=box_BQ2, proposed_BQ=torch.ones(1, 2).bool()))
    assert all(torch.equal(output.box_BQ2, box_BQ2) for output in decoded.outputs)
    assert decoded.states[-1].shape == (1, 2, 32)
    absent = torch.tensor([[True, False]])
    alone = model(replace(videos, proposal_BQ2=box_BQ2, proposed_BQ=absent))
    only = model(replace(videos, proposal_BQ2=box_BQ2[:, :1], proposed_BQ=absent[:, :1]))
    torch.testing.assert_close(alone.states[-1][:, :1], only.states[-1], atol=1e-5, rtol=1e-5)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pdvc'"):
        methods.build("pdcv")
    with pytest.raises(ConfigError, match="multiple of 32"):
        methods.pdvc(width=48)
    with pytest.raises(CheckpointError, match=r"transformer\.level_embed: missing"):
        methods.load({"weight": torch.ones(1)})
    with pytest.raises(DatastoreError, match="memory bank"):
        methods.cm2(frames=100).caption(torch.ones(100, 768), 10.0)
    with pytest.raises(ValueError, match=r"features must be \[frames, 8\]"):
        small("pdvc").caption(torch.ones(4, 9), 10.0)


def test_a_published_checkpoint_is_opened(tmp_path: Path) -> None:
    model, features_TF = small("pdvc_light"), torch.randn(20, 8)
    torch.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "model-best.pth")
    options = '{"best": {"opt": {"nheads": 2, "frame_embedding_num": 16, "max_caption_len": 6}}}'
    (tmp_path / "info.json").write_text(options)
    opened = methods.load(tmp_path / "model-best.pth", words=WORDS)
    assert opened.caption(features_TF, 40.0) == model.caption(features_TF, 40.0)
    (tmp_path / "model-best.pth").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"model-best\.pth: not a checkpoint"):
        methods.load(tmp_path / "model-best.pth")


def test_training_reaches_the_published_rates() -> None:
    train = METHODS["pdvc"]().train
    rates = [rate(10 * epoch, 300, train) / 5e-5 for epoch in range(30)]
    milestones = [8 + 3 * n for n in range(int((30 - 8) / 3))]
    assert rates == [0.5 ** sum(epoch >= one for one in milestones) for epoch in range(30)]


def test_recipes_are_listed_without_torch() -> None:
    program = "import sys, starc.training.recipes; print('torch' in sys.modules)"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert listed.stdout == "False\n", listed.stderr
