"""The joint space: vectors of what is seen and said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from starc.errors import CheckpointError
from starc.model.joint_space import REACH, JointSpace
from starc.types import Sentence

WORDS = ["<unk>", "eggs", "pan", "butter"]


@pytest.fixture
def joint() -> JointSpace:
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    word_VD = torch.cat([torch.zeros(1, 3), torch.eye(3)])
    return JointSpace(tokenizer, word_VD, torch.ones(2), torch.full((2,), 2.0), torch.eye(2, 3))


def test_speech_fades_with_distance(joint: JointSpace) -> None:
    sentences = [Sentence(10, 12, "eggs"), Sentence(20, 22, "pan")]
    said_TD = joint.encode_speech([0.0, 11.0, 15.0, 40.0], sentences)
    assert said_TD[0].tolist() == said_TD[3].tolist() == [0, 0, 0]
    assert said_TD[1].tolist() == [1, 0, 0]
    weights = torch.tensor([1 - 3 / REACH, 1 - 5 / REACH, 0.0])
    torch.testing.assert_close(said_TD[2], weights / weights.norm())


def test_images_are_standardised_and_mapped(joint: JointSpace) -> None:
    seen_TD = joint.encode_images(torch.tensor([[3.0, 1.0], [1.0, 7.0]]))
    torch.testing.assert_close(seen_TD, torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))


def test_either_half_may_be_missing(joint: JointSpace) -> None:
    image_TI = torch.tensor([[3.0, 1.0]])
    both = joint.combine(image_TI, [1.0], [Sentence(0, 2, "butter")])
    torch.testing.assert_close(both, torch.tensor([[1.0, 0.0, 1.0]]) * 3**0.5)
    assert joint.combine(None, [1.0], []).tolist() == [[0, 0, 0]]
    assert joint.combine(image_TI, [1.0], [])[0].argmax() == 0


def test_it_comes_back_from_its_file(joint: JointSpace, tmp_path: Path) -> None:
    joint.save(tmp_path / "joint.safetensors")
    again = JointSpace.load(tmp_path / "joint.safetensors", joint.tokenizer)
    for name in ("word_VD", "mean_I", "deviation_I", "image_ID"):
        torch.testing.assert_close(getattr(again, name), getattr(joint, name))
    (tmp_path / "cut").write_bytes((tmp_path / "joint.safetensors").read_bytes()[:40])
    for broken in ("cut", "nowhere"):
        with pytest.raises(CheckpointError, match=rf"{broken}: not a joint space .*copy it again"):
            JointSpace.load(tmp_path / broken, joint.tokenizer)
