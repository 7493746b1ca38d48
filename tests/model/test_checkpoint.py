"""Model folders and published files: round trips, strictness, nothing half-written or executed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from starc import config as configs
from starc.config import to_dict
from starc.errors import CheckpointError, ConfigError
from starc.inference.pipeline import EMBEDDED
from starc.media import encoders
from starc.model import checkpoint, published
from starc.model.starc import STaRC
from support.tiny import batch, store, tiny


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "stir": 1}, unk_token="<unk>"))
    checkpoint.save(tmp_path / "model", STaRC(tiny()), tokenizer=tokenizer, store=store())
    return tmp_path / "model"


def test_loading_draws_no_numbers_and_imports_no_compiler() -> None:
    code = (
        "import sys; from pathlib import Path; from starc.model import checkpoint;"
        f"checkpoint.load(Path({str(EMBEDDED)!r}), device='cpu');"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def write(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def published_state(data: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(data / "model/weights.pt", weights_only=True)[
        "state_dict"
    ]
    return state


# Folders ----------------------------------------------------------------------------------------


def test_a_folder_gives_back_the_same_model(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [
        "config.json",
        "datastore",
        "model.safetensors",
        "tokenizer.json",
    ]
    torch.manual_seed(0)
    first, loaded = STaRC(tiny()).eval(), checkpoint.load(saved, device="cpu")
    assert to_dict(loaded.config) == to_dict(tiny()) and not loaded.model.training
    assert loaded.tokenizer is not None and loaded.tokenizer.token_to_id("stir") == 1
    assert loaded.store is not None and loaded.store.captions == store().captions
    with torch.no_grad():
        ours, theirs = (it(batch(), store()).total for it in (first, loaded.model))
    assert torch.equal(ours, theirs)


def test_half_precision_becomes_float32(saved: Path) -> None:
    state = {name: it.half() for name, it in load_file(saved / "model.safetensors").items()}
    save_file(state, saved / "model.safetensors")
    model = checkpoint.load(str(saved)).model
    assert {it.dtype for it in model.parameters()} == {torch.float32}


def test_saving_again_replaces_the_folder(saved: Path) -> None:
    checkpoint.save(saved, STaRC(tiny(prompt=None)))
    assert checkpoint.load(saved).config.prompt is None
    assert not (saved / "datastore").exists()
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_failure_while_saving_leaves_the_old_folder(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (saved / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name, where in (("save_file", checkpoint), ("replace", os)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, full)
            with pytest.raises(CheckpointError, match=r"not saved .*No space left"):
                checkpoint.save(saved, STaRC(tiny()))
        assert (saved / "model.safetensors").read_bytes() == before
        assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_failure_in_the_last_moment_brings_the_old_folder_back(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, calls = os.replace, []

    def second_fails(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", second_fails)
    with pytest.raises(CheckpointError, match="Input/output"):
        checkpoint.save(saved, STaRC(tiny()))
    assert to_dict(checkpoint.load(saved).config) == to_dict(tiny())
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_kill_between_two_renames_loses_no_model(saved: Path) -> None:
    aside = saved.with_name(".model.old")
    os.replace(saved, aside)
    assert to_dict(checkpoint.load(saved).config) == to_dict(tiny()) and not aside.exists()
    os.replace(saved, aside)
    checkpoint.save(saved, STaRC(tiny(prompt=None)))
    assert checkpoint.load(str(saved)).config.prompt is None and not aside.exists()


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"not ours \(cat.jpg\)"):
        checkpoint.save(tmp_path / "photos", STaRC(tiny()))


@pytest.mark.parametrize("name", ["notes.txt", "datastore/notes.txt", ".git/HEAD", "empty/"])
def test_a_model_folder_with_files_of_others_is_not_overwritten(saved: Path, name: str) -> None:
    path = saved / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    with pytest.raises(CheckpointError, match=name.split("/")[0]):
        checkpoint.save(saved, STaRC(tiny()))
    assert path.exists()


def test_loading_is_strict(saved: Path) -> None:
    weights = saved / "model.safetensors"
    state = load_file(weights)
    del state["anchor_KD"]
    state["stray"] = torch.zeros(1)
    state["swsa.norm.bias"] = torch.zeros(3)
    save_file(state, weights)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(saved)
    message = str(caught.value)
    assert "missing 1: anchor_KD" in message and "extra 1: stray" in message
    assert "swsa.norm.bias (3,) for (64,)" in message and "\n" not in message


def test_what_is_wrong_with_a_folder(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder; give a model folder or a hub id"):
        checkpoint.load(tmp_path / "nowhere")
    (saved / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match="unreadable"):
        checkpoint.load(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        checkpoint.load(saved)
    settings = json.loads((saved / "config.json").read_text())
    settings["transport"]["anchor"] = 3
    (saved / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="did you mean 'anchors'"):
        checkpoint.load(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        checkpoint.load(saved)
    (saved / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        checkpoint.load(saved)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise OSError("offline mode is enabled\nsecond line")

    monkeypatch.setattr("starc.model.folder.hub_is_away", lambda: False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(CheckpointError, match="the hub says: offline mode is enabled"):
        checkpoint.load("someone/starc")


def test_no_network_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    with socket.socket() as deaf:  # bound, not listening
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        encoders.hub_is_away.cache_clear()
        waited: list[float] = []
        monkeypatch.setattr(time, "sleep", waited.append)  # between tries
        with pytest.raises(CheckpointError, match="the hub does not answer"):
            checkpoint.load("nobody/nothing")
        with pytest.raises(CheckpointError, match="the model hub does not answer"):
            encoders.load_image_encoder("nobody/nothing")
        assert sum(waited) < 10
    encoders.hub_is_away.cache_clear()


def test_a_hub_id_is_a_folder_in_the_cache(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(saved))
    assert checkpoint.load("someone/starc").folder == saved


def test_a_damaged_tokenizer(saved: Path) -> None:
    (saved / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        checkpoint.load(saved)


# Published files --------------------------------------------------------------------------------


def test_names_go_both_ways(shared: Path) -> None:
    for line in (shared / "parity/model/state_dict_t5base.txt").read_text().splitlines()[1:]:
        name = line.split("\t")[0]
        ours = published.to_ours(name)
        assert ours is not None and published.to_published(ours) == name
    assert published.to_ours("normal.weight") is None
    assert published.to_ours("anchors2") is None
    assert published.to_published("feature_projection.weight") is None


def test_the_full_size_model_fits_the_published_keys(shared: Path) -> None:
    lines = (shared / "parity/model/state_dict_t5base.txt").read_text().splitlines()[1:]
    with torch.device("meta"):
        theirs = {
            name: torch.empty(tuple(int(it) for it in shape.strip("()").split(",") if it))
            for name, shape in (line.split("\t") for line in lines)
        }
    assert len(theirs) == 424
    state = {ours: it for name, it in theirs.items() if (ours := published.to_ours(name))}
    config = published.resized(published.guessed(state, {}), state, {})
    assert config == configs.published()
    with torch.device("meta"):
        wanted = STaRC(config).state_dict()
    assert {name: it.shape for name, it in wanted.items()} == {
        name: it.shape for name, it in state.items() if name not in published.ALIASES
    }
    assert sum(it.numel() for it in wanted.values()) == 292_756_993


def test_importing_starc(data: Path, tmp_path: Path) -> None:
    report = checkpoint.import_published(data / "model/weights.pt", tmp_path / "out", store=store())
    assert len(report.taken) == 94 and not report.fresh and not report.unknown
    assert str(report) == "took 94; fresh 0; unknown 0"
    loaded = checkpoint.load(tmp_path / "out")
    assert to_dict(loaded.config) == to_dict(report.config)
    assert report.config.loss.saliency_weight == 3.0 and report.config.temporal.heads == 4
    assert report.config.t5.text_vocabulary == 1100 and not report.config.mask_padding
    state = published_state(data)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, state[str(published.to_published(name))])


@pytest.mark.parametrize("key", ["model", "state_dict", None])
def test_where_the_tensors_are(data: Path, tmp_path: Path, key: str | None) -> None:
    state = {f"module.{name}": it for name, it in published_state(data).items()}
    arguments = argparse.Namespace(asot_K=8, loss_lambda=2.0, heads=4, use_ret=False)
    content = {key: state, "args": arguments, "epoch": 3} if key else state
    path = write(tmp_path / "weights.pth", content)
    report = checkpoint.import_published(path, tmp_path / "out")
    if key:
        assert report.config.loss.saliency_weight == 1.0 and report.config.retrieval is None
        assert report.config.temporal.heads == 4
        assert set(report.unknown) == {"anchors", "proj_r2t.weight", "proj_r2t.bias"}
    else:
        assert report.config.temporal.heads == 1 and not report.unknown


@pytest.mark.parametrize("saliency", [True, False])
def test_prompts_need_both_switches(data: Path, tmp_path: Path, saliency: bool) -> None:
    """The published code adds them where `use_salip` and `use_saliency` are both on."""
    arguments = argparse.Namespace(heads=4, use_salip=True, use_saliency=saliency)
    content = {"model": published_state(data), "args": arguments}
    path = write(tmp_path / "weights.pth", content)
    report = checkpoint.import_published(path, tmp_path / "out")
    assert (report.config.prompt is not None) == saliency
    unused = set() if saliency else {"saliency_tok_proj.weight", "saliency_tok_proj.bias"}
    assert set(report.unknown) == unused


@pytest.mark.parametrize("left_out", ["use_video", "use_speech"])
def test_a_vid2seq_of_one_sense_keeps_to_it(data: Path, tmp_path: Path, left_out: str) -> None:
    """VidChapters' --no_video and --no_speech stand so in a file's arguments."""
    state = published_state(data)
    state = {name: it for name, it in state.items() if not name.startswith("saliency_proj")}
    arguments = argparse.Namespace(heads=4, **{left_out: False})
    path = write(tmp_path / "weights.pth", {"model": state, "args": arguments})
    inputs = checkpoint.import_published(path, tmp_path / "out").config.inputs
    assert (inputs.video, inputs.speech) == (left_out != "use_video", left_out != "use_speech")


def test_numbers_of_numpy_are_data(data: Path, tmp_path: Path) -> None:
    arguments = argparse.Namespace(heads=np.int64(4), loss_lambda=np.float64(2.0))
    content = {"model": published_state(data), "args": arguments, "best": np.float32(0.5)}
    path = write(tmp_path / "weights.pth", content)
    config = checkpoint.import_published(path, tmp_path / "out").config
    assert (config.temporal.heads, config.loss.saliency_weight) == (4, 1.0)
    old = tmp_path / "old.pth"  # as numpy 1 wrote it
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"numpy._core.", b"numpy.core."))
    assert checkpoint.import_published(old, tmp_path / "same").config == config


@pytest.mark.parametrize("kind", ["vid2seq", "starc"])
def test_settings_by_their_published_names(data: Path, tmp_path: Path, kind: str) -> None:
    state = published_state(data)
    if kind == "vid2seq":
        state = {name: it for name, it in state.items() if not name.startswith("saliency_proj")}
    arguments = argparse.Namespace(
        heads=8,
        num_bins=100,
        max_feats=100,
        max_input_tokens=500,
        max_output_tokens=128,
        num_beams=5,
        length_penalty=0.6,
        repetition_penalty=1.2,
        label_smoothing=0.2,
        denoising=0.5,
        mask_prob=0.3,
        mask_len=4,
        visual_encoder_dropout=0.2,
        text_encoder_dropout=0.3,
    )
    path = write(tmp_path / "weights.pth", {"model": state, "args": arguments})
    config = checkpoint.import_published(path, tmp_path / "out").config
    assert (config.saliency is None) == (kind == "vid2seq")
    assert (config.temporal.heads, config.temporal.dropout, config.t5.dropout) == (8, 0.2, 0.3)
    assert (config.inputs.frames, config.inputs.speech_tokens) == (100, 500)
    search = config.decoding
    assert (search.beams, search.max_tokens) == (5, 128)
    assert (search.length_penalty, search.repetition_penalty) == (0.6, 1.2)
    loss = config.loss
    assert (loss.label_smoothing, loss.denoising_weight) == (0.2, 0.5)
    assert (loss.corruption, loss.corrupted_span) == (0.3, 4.0)


def test_importing_vid2seq(data: Path, tmp_path: Path) -> None:
    state = {
        name: it
        for name, it in published_state(data).items()
        if name.startswith(("t5_model.", "visual_encoder.")) and "global_head" not in name
    }
    path = write(tmp_path / "vid2seq.pth", {"model": state | {"extra.weight": torch.zeros(2)}})
    report = checkpoint.import_published(path, tmp_path / "same")
    assert report.config.saliency is None and not report.config.temporal.projection
    assert not report.fresh and report.unknown == ("extra.weight",)
    # To fine-tune it as STaRC: the new parts start fresh, and the video projection as identity.
    report = checkpoint.import_published(path, tmp_path / "grown", config=configs.paper())
    parts = {name.split(".")[0] for name in report.fresh}
    assert parts == {
        "anchor_KD",
        "video_projection",
        "swsa",
        "saliency",
        "prompt_projection",
        "retrieved_projection",
    }
    assert report.config.mask_padding and report.config.loss == configs.paper().loss
    model = checkpoint.load(tmp_path / "grown").model
    assert model.video_projection is not None
    assert torch.equal(model.video_projection.weight, torch.eye(64))


def test_a_checkpoint_of_another_shape(data: Path, tmp_path: Path) -> None:
    state = published_state(data) | {"proj_v2t.weight": torch.zeros(64, 32)}
    path = write(tmp_path / "odd.pth", {"model": state})
    with pytest.raises(CheckpointError, match=r"proj_v2t.weight is \(64, 32\).*needs \(64, 64\)"):
        checkpoint.import_published(path, tmp_path / "out")
    state = published_state(data) | {"t5_model.lm_head.weight": torch.zeros(1200, 64)}
    path = write(tmp_path / "untied.pth", {"model": state})
    with pytest.raises(CheckpointError, match=r"differs from t5_model\.shared"):
        checkpoint.import_published(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_executable_content_is_never_run(data: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Marker:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(marker),))

    path = write(tmp_path / "trap.pth", {"model": published_state(data), "args": Marker()})
    with pytest.raises(CheckpointError, match="holds more than tensors") as caught:
        checkpoint.import_published(path, tmp_path / "out")
    assert not marker.exists() and not (tmp_path / "out").exists()
    assert "\n" not in str(caught.value)


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        checkpoint.import_published(tmp_path / "absent.pth", tmp_path / "out")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(CheckpointError):
        checkpoint.import_published(tmp_path / "text.pth", tmp_path / "out")
    path = write(tmp_path / "list.pth", [torch.zeros(1)])
    with pytest.raises(CheckpointError, match="holds a list"):
        checkpoint.import_published(path, tmp_path / "out")
    path = write(tmp_path / "other.pth", {"conv.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="no tensor of a Vid2Seq or STaRC model"):
        checkpoint.import_published(path, tmp_path / "out")
    path = write(tmp_path / "part.pth", {"anchors": torch.zeros(8, 4)})
    with pytest.raises(CheckpointError, match=r"visual_encoder\.pos_embed: missing"):
        checkpoint.import_published(path, tmp_path / "out")


def test_the_import_of_a_full_model_keeps_settings_of_its_own(data: Path, tmp_path: Path) -> None:
    chosen = dataclasses.replace(configs.paper(), mask_padding=False)
    path = data / "model/weights.pt"
    report = checkpoint.import_published(path, tmp_path / "out", config=chosen)
    assert not report.config.mask_padding and report.config.swsa == configs.SwsaConfig()


# What a folder claims -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["t5.layers", "t5.decoder_layers", "temporal.depth"])
def test_layers_without_weights_are_not_built(
    saved: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = json.loads((saved / "config.json").read_text())
    outer, inner = part.split(".")
    facts[outer][inner] = 10**9
    (saved / "config.json").write_text(json.dumps(facts))
    monkeypatch.setattr(checkpoint, "STaRC", lambda _: pytest.fail("was built"))
    with pytest.raises(CheckpointError, match=r"tensors for 1000000000 layers"):
        checkpoint.load(saved, device="cpu")


@pytest.mark.parametrize("value", [10**15, 10**30])
def test_widths_that_cannot_be_are_one_line(saved: Path, value: int) -> None:
    facts = json.loads((saved / "config.json").read_text())
    for part, key in (("t5", "feed_forward"), ("t5", "width"), ("temporal", "features")):
        claimed = {**facts, part: {**facts[part], key: value}}
        (saved / "config.json").write_text(json.dumps(claimed))
        with pytest.raises((CheckpointError, ConfigError)) as caught:
            checkpoint.load(saved, device="cpu")
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.name == "nt", reason="no named pipes there")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_a_model_folder_is_not_waited_for(saved: Path, name: str) -> None:
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        checkpoint.load(saved, device="cpu")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_a_device_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "zero.pth").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="not a regular file"):
        checkpoint.import_published(tmp_path / "zero.pth", tmp_path / "out")


def test_a_published_file_claims_no_more_than_it_holds(data: Path, tmp_path: Path) -> None:
    state = published_state(data)
    huge = state | {"proj_v2t.weight": torch.zeros(1, 1).expand(10**6, 10**6)}
    with pytest.raises(CheckpointError, match="larger than what the file holds"):
        checkpoint.import_published(write(tmp_path / "huge.pth", {"model": huge}), tmp_path / "out")
    deep = state | {f"t5_model.encoder.block.{n}.a": torch.zeros(1) for n in (10**9, "9" * 5000)}
    report = checkpoint.import_published(
        write(tmp_path / "deep.pth", {"model": deep}), tmp_path / "out"
    )
    assert len(report.unknown) == 2
    odd = {"model": state, "args": {"num_bins": 10**6}}
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        checkpoint.import_published(write(tmp_path / "odd.pth", odd), tmp_path / "out2")
    assert "\n" not in str(caught.value)
