"""Reduced precision: how far off, and what it must not depend on."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from starc import processor
from starc.config import BeamSearch, T5Config, tiny
from starc.decoder import precision
from starc.decoder.beam_search import generate
from starc.decoder.precision import Int8Linear, convert
from starc.decoder.t5 import T5
from starc.errors import ConfigError


def published(data: Path) -> T5:
    state = torch.load(data / "model/weights.pt")["state_dict"]
    t5 = T5(tiny().t5).eval()
    t5.load_state_dict({name: state[f"t5_model.{name}"] for name in t5.state_dict()})
    return t5


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 on any processor; slow, but right."""
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("name", "error", "agree"), [("int8", 0.05, 0.95), ("bfloat16", 0.02, 0.97)]
)
def test_error_on_trained_weights(data: Path, name: str, error: float, agree: float) -> None:
    golden = torch.load(data / "model/case_F50_B2.pt")
    memory = golden["gen"]["gen_enc_concat#0"], golden["gen"]["gen_enc_mask#0"]
    target_BL = golden["inputs"]["output_tokens"]
    speech_BL = golden["inputs"]["input_tokens"]
    real_BL = target_BL != 0
    exact, rough = published(data), convert(published(data), name)
    with torch.no_grad():
        expected, found = (
            t5.logits(t5.decode(*memory, target_BL)).float()[real_BL] for t5 in (exact, rough)
        )
        heard, roughly = (t5.encode(speech_BL, speech_BL != 0).float() for t5 in (exact, rough))
    assert (found - expected).norm() < error * expected.norm()
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() >= agree
    assert (heard - roughly).norm() < error * heard.norm()
    search = BeamSearch(max_tokens=20)
    for video, other in zip(
        generate(exact, *memory, search), generate(rough, *memory, search), strict=True
    ):
        assert other.score == pytest.approx(video.score, abs=0.3)


def test_int8_layer_is_exact_on_its_own_grid() -> None:
    torch.manual_seed(0)
    weight_VD = torch.randint(-127, 128, (24, 40)).float()
    weight_VD[:, 0] = 127
    layer = Int8Linear.of(weight_VD * 0.01)
    x_ND = torch.randint(-layer.level, layer.level + 1, (5, 40)).float()
    x_ND[:, 0] = layer.level
    expected_NV = (x_ND * 0.5) @ (weight_VD.T * 0.01)
    torch.testing.assert_close(layer(x_ND * 0.5), expected_NV, atol=1e-3, rtol=1e-5)


def test_int8_sums_do_not_overflow() -> None:
    layer = Int8Linear.of(torch.ones(16, 512))
    x_ND = torch.ones(3, 512)
    torch.testing.assert_close(layer(x_ND), torch.full((3, 16), 512.0))
    torch.testing.assert_close(layer(-x_ND), torch.full((3, 16), -512.0))
    assert not layer(torch.zeros(3, 512)).any()


def test_int8_neighbours_change_nothing(data: Path) -> None:
    t5 = convert(published(data), "int8")
    torch.manual_seed(0)
    memory_BMD = torch.randn(3, 20, 64) * torch.tensor([1.0, 30.0, 0.1])[:, None, None]
    mask_BM = torch.ones(3, 20, dtype=torch.bool)
    search = BeamSearch(max_tokens=12)
    together = generate(t5, memory_BMD, mask_BM, search)
    for video in range(3):
        one = slice(video, video + 1)
        (alone,) = generate(t5, memory_BMD[one], mask_BM[one], search)
        assert alone.ids == together[video].ids


def test_convert_finds_the_t5_inside_and_leaves_the_rest(data: Path) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t5 = published(data)
            self.other = nn.Linear(4, 4)

    holder = convert(Holder(), "int8")
    assert isinstance(holder.other, nn.Linear)
    assert not any(isinstance(module, nn.Linear) for module in holder.t5.modules())
    assert convert(holder, "int8") is holder
    with pytest.raises(ConfigError, match="int8 already"):
        convert(holder, "float32")


@pytest.fixture(params=["missing", "changed", "wrong"])
def other_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch whose private operators are gone, take other arguments, or give other numbers."""

    def changed(*_: object) -> None:
        raise RuntimeError("expected at most 7 arguments")

    class Operators:
        qlinear_prepack = _reorder_linear_weight = staticmethod(
            changed if request.param == "changed" else lambda weight, _: weight
        )
        qlinear_pointwise = _linear_pointwise = staticmethod(lambda x, *_: torch.zeros(len(x), 64))

    operators = object() if request.param == "missing" else Operators
    for name in ("onednn", "mkldnn"):
        monkeypatch.setattr(torch.ops, name, operators, raising=False)
    precision.has_int8_product.cache_clear()
    precision.has_packed_linear.cache_clear()
    yield
    precision.has_int8_product.cache_clear()
    precision.has_packed_linear.cache_clear()


@pytest.mark.usefixtures("other_torch")
@pytest.mark.parametrize("name", ["float32", "int8"])
def test_other_torches_fall_back_to_plain_products(
    data: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = torch.load(data / "model/case_F50_B2.pt")["gen"]
    memory = golden["gen_enc_concat#0"], golden["gen_enc_mask#0"]
    search = BeamSearch(max_tokens=20)
    assert not precision.has_int8_product() and not precision.has_packed_linear(torch.float32)
    plain = generate(convert(published(data), name), *memory, search)
    monkeypatch.undo()
    precision.has_int8_product.cache_clear()
    precision.has_packed_linear.cache_clear()
    fast = generate(convert(published(data), name), *memory, search)
    assert [video.ids for video in plain] == [video.ids for video in fast]
    for video, other in zip(plain, fast, strict=True):
        assert video.score == pytest.approx(other.score, abs=1e-4)


def test_this_torch_has_the_fast_products() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch was built without oneDNN")
    assert precision.has_packed_linear(torch.float32)


def test_unknown_or_impossible_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    size = T5Config(
        width=16, head_width=4, feed_forward=16, layers=1, decoder_layers=1, text_vocabulary=120
    )
    with pytest.raises(ConfigError, match="choose one of float32, bfloat16, int8"):
        convert(T5(size), "int4")
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: False)
    with pytest.raises(ConfigError, match="no bfloat16 arithmetic"):
        convert(T5(size), "bfloat16")
    with pytest.raises(ConfigError, match="processors only"):
        convert(T5(size).to("meta"), "int8")
    assert convert(T5(size), "float32").shared.weight.dtype == torch.float32


def test_detection_answers() -> None:
    assert precision.has_bfloat16(torch.device("cpu")) in (True, False)
    assert precision.has_bfloat16(torch.device("meta")) is False


@pytest.fixture
def no_cpuinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A system that does not list the processor's instruction sets."""
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    processor.capabilities.cache_clear()
    yield
    processor.capabilities.cache_clear()


@pytest.mark.usefixtures("no_cpuinfo")
def test_where_the_system_does_not_tell_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"avx512_bf16": True, "avx512_vnni": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert precision.has_bfloat16(torch.device("cpu")) is True
    assert Int8Linear.of(torch.ones(16, 512)).level == 63


@pytest.mark.usefixtures("no_cpuinfo")
def test_a_processor_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert precision.has_bfloat16(torch.device("cpu")) is False
    assert Int8Linear.of(torch.ones(16, 512)).level == 63
    test_int8_sums_do_not_overflow()


def test_a_fresh_process_multiplies() -> None:
    """Also where the processor offers AMX but hides how its tiles are laid out."""
    program = """
import torch
from starc.decoder.precision import Int8Linear, has_bfloat16
has_bfloat16(torch.device("cpu"))
x_ND, weight_VD = torch.rand(48, 256), torch.rand(256, 256)
torch.nn.functional.linear(x_ND.bfloat16(), weight_VD.bfloat16())
image_NDHW = torch.rand(4, 64, 28, 28).bfloat16()
torch.nn.functional.conv2d(image_NDHW, torch.rand(64, 64, 1, 1).bfloat16())
Int8Linear.of(weight_VD)(x_ND)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
