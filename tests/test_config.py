"""Settings: presets, the JSON beside the weights, overrides of the command line."""

import dataclasses
import json
import subprocess
import sys

import pytest

from starc import config as configs
from starc.config import Config, SwsaConfig, TransportConfig, apply_overrides, from_dict, to_dict
from starc.errors import ConfigError


@pytest.mark.parametrize("name", sorted(configs.PRESETS))
def test_a_preset_survives_json(name: str) -> None:
    preset = configs.preset(name)
    configs.check(preset)
    assert from_dict(json.loads(json.dumps(to_dict(preset, training=True)))) == preset
    kept = from_dict(json.loads(json.dumps(to_dict(preset))))
    assert to_dict(kept) == to_dict(preset)
    assert configs.with_training_of(kept, preset) == preset


def test_a_model_folder_holds_nothing_that_only_training_needs() -> None:
    text = json.dumps(to_dict(configs.paper()))
    for name in ("loss", "dropout", "exclude_own", "temperature", "recompute", "align_labels"):
        assert f'"{name}"' not in text
    for name in ("frames", "speech_tokens", "max_tokens", "image_encoder", "text_encoder", "beams"):
        assert f'"{name}"' in text


def test_a_second_stage_takes_sizes_and_inputs_from_the_first() -> None:
    first = apply_overrides(
        configs.tiny(), ["inputs.frames=30", "windowing.seconds=50", "decoding.beams=2"]
    )
    second = configs.with_sizes_of(configs.paper(), first)
    assert (second.temporal.depth, second.t5, second.inputs) == (2, first.t5, first.inputs)
    assert (second.windowing, second.decoding) == (first.windowing, first.decoding)
    assert (second.loss, second.swsa) == (configs.paper().loss, configs.paper().swsa)


def test_presets_differ_where_paper_and_published_code_differ() -> None:
    ours, theirs = (to_dict(one(), training=True) for one in (configs.paper, configs.published))
    differing = {
        f"{part}.{name}"
        for part, values in ours.items()
        if isinstance(values, dict) and isinstance(theirs[part], dict)
        for name, value in values.items()
        if theirs[part][name] != value
    }
    assert differing == {
        "swsa.stride",
        "swsa.partial",
        "saliency.second_pass",
        "saliency.standardise",
        "saliency.align_labels",
        "transport.centre",
        "transport.bounded_step",
        "retrieval.exclude_own",
        "retrieval.mask_missing",
        "loss.saliency_weight",
        "loss.saliency_in_denoising",
        "loss.denoising_video",
        "loss.anchor_weight",
    }
    assert ours["mask_padding"] and not theirs["mask_padding"]
    assert ours["windowing"] and theirs["windowing"] is None


def test_overrides_are_read_as_the_type_of_the_field() -> None:
    changed = apply_overrides(
        configs.paper(),
        [
            "transport.anchors=10",
            "loss.saliency_weight=2",
            "swsa.sizes=8,16",
            "swsa.stride=4,8",
            "segments.method=kmeans",
            "mask_padding=false",
            "retrieval=none",
            "t5.feed_forward_activation=gelu",
        ],
    )
    assert changed.transport.anchors == 10
    assert changed.loss.saliency_weight == 2.0 and isinstance(changed.loss.saliency_weight, float)
    assert changed.swsa == SwsaConfig(sizes=(8, 16), stride=(4, 8))
    assert changed.segments.method == "kmeans"
    assert changed.retrieval is None and not changed.mask_padding
    assert changed.t5.feed_forward_activation == "gelu"


def test_a_part_that_is_off_comes_back_with_its_defaults() -> None:
    off = configs.vid2seq()
    assert apply_overrides(off, ["retrieval=on"]).retrieval == configs.RetrievalConfig()
    assert apply_overrides(off, ["retrieval.captions=3"]).retrieval == configs.RetrievalConfig(
        captions=3
    )


def test_the_order_of_overrides_does_not_matter() -> None:
    for overrides in (["saliency=none", "prompt=none"], ["prompt=none", "saliency=none"]):
        assert apply_overrides(configs.paper(), overrides).saliency is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "transport.anchor=3",
            "transport.anchor: unknown setting 'anchor'; did you mean 'anchors'",
        ),
        ("transprt.anchors=3", "did you mean 'transport'"),
        ("mask_padding.x=1", "'mask_padding' has no settings of its own"),
        ("retrieval.captions=many", "expected a whole number (found 'many')"),
        ("segments.method=kmean", "transport or uniform or adaptive or kmeans"),
        ("swsa.stride=3.5", "expected half or tile or a whole number"),
        ("mask_padding=2", "expected true or false"),
        ("anchors", "write anchors=VALUE"),
        ("saliency=none", "prompt: needs saliency scores"),
        ("t5.width=100", "temporal.heads: 12 does not divide"),
        ("transport.entropy=0", "transport.entropy: must be above 0"),
        ("transport.structure=2", "must be at most 1"),
        ("transport.anchors=-1", "must be above 0"),
        ("loss.saliency_weight=nan", "must be at least 0"),
        ("transport.entropy=1" + 400 * "0", "expected a number"),
        ("swsa.stride=1,2", "2 strides for 3 sizes"),
        ("swsa.sizes=0,8,16", "at least one frame"),
    ],
)
def test_a_wrong_override_says_what_to_write(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(configs.paper(), [override])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_reading_is_strict() -> None:
    data = to_dict(configs.paper())
    unknown = data | {"transports": {}}
    with pytest.raises(ConfigError, match=r"config\.transports: unknown.*'transport'"):
        from_dict(unknown)
    lacking = data | {"transport": {"anchors": 8}}
    with pytest.raises(ConfigError, match=r"config\.transport: missing inference_entropy"):
        from_dict(lacking)
    with pytest.raises(ConfigError, match="expected an object"):
        from_dict(data | {"t5": 3})
    with pytest.raises(ConfigError, match="unknown; did you mean 'paper'"):
        configs.preset("papers")


def test_strides() -> None:
    assert SwsaConfig().steps() == (4, 16, 32)
    assert SwsaConfig(stride="tile").steps() == (8, 32, 64)
    assert SwsaConfig(stride=5).steps() == (5, 5, 5)
    assert SwsaConfig(sizes=(1, 2), stride="half").steps() == (1, 1)


def test_settings_cannot_change_under_a_model() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransportConfig().anchors = 3  # type: ignore[misc]


def test_settings_need_no_torch() -> None:
    code = "import sys, starc.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_vid2seq_is_everything_off() -> None:
    off: Config = configs.vid2seq()
    assert (off.swsa, off.saliency, off.retrieval, off.prompt) == (None, None, None, None)
