"""Recipes: the paper's numbers, overrides that are checked, a way through JSON."""

import json

import pytest
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import ConfigError
from starc.training.dataset import batch_order, batches_per_epoch
from starc.training.recipes import (
    RECIPES,
    TrainConfig,
    apply_overrides,
    from_dict,
    recipe,
    settings,
    to_dict,
)
from starc.training.tables import ABLATIONS, ablation


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_json(name: str) -> None:
    whole = recipe(name)
    assert from_dict(json.loads(json.dumps(to_dict(whole)))) == whole


def test_the_papers_numbers() -> None:
    youcook2, vitt = recipe("youcook2"), recipe("vitt")
    assert (youcook2.model.loss.saliency_weight, vitt.model.loss.saliency_weight) == (6, 2)
    assert youcook2.model.swsa and youcook2.model.swsa.sizes == (8, 32, 64)
    assert (youcook2.model.transport.anchors, youcook2.model.segments.top_k) == (8, 5)
    assert (youcook2.train.batch, youcook2.train.epochs, youcook2.train.learning_rate) == (
        4,
        10,
        1e-5,
    )
    assert recipe("vid2seq").train.learning_rate == 3e-4


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.epoch=3", "did you mean 'epochs'"),
        ("train.epochs=many", "whole number"),
        ("train.epochs=0", "at least 1"),
        ("train.learning_rate=nan", r"at least 0 \(found nan\)"),
        ("train.learning_rate=inf", "at least 0"),
        ("model.t5.bins=1", "two moments"),
        ("train.warmup=2", "between 0 and 1"),
        ("model.transport.anchor=3", "did you mean 'anchors'"),
        ("train.accumulate=3", "does not divide"),
        ("transport.anchor=3", "did you mean 'anchors'"),
        ("transprt.anchors=3", "did you mean 'transport'"),
        ("train", "no value"),
    ],
)
def test_overrides_are_checked(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        apply_overrides(recipe("youcook2"), [override])


def test_settings_of_the_model_need_no_prefix() -> None:
    """docs/deviations.md and a model's config.json call them so."""
    long, short = (f"{prefix}transport.centre=true" for prefix in ("model.", ""))
    chosen = apply_overrides(recipe("youcook2"), [short, "swsa=none"])
    assert chosen == apply_overrides(recipe("youcook2"), [long, "model.swsa=none"])
    assert chosen.model.transport.centre and chosen.model.swsa is None


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'youcook2'"):
        recipe("youcook")
    with pytest.raises(ConfigError, match="did you mean 'windows'"):
        ablation("window")
    with pytest.raises(ConfigError, match="known: components, inputs, windows"):
        ablation("nosuch")


def test_every_setting_is_listed_and_can_be_set() -> None:
    whole = recipe("tiny_youcook2")
    listed = {one.name: one for one in settings(whole)}
    assert listed["train.learning_rate"].value == "0.004"
    assert listed["train.freeze"].meaning.startswith("Parameters that stay as they are")
    assert not [one.name for one in listed.values() if not one.meaning]
    assert apply_overrides(whole, [f"{one.name}={one.value}" for one in listed.values()]) == whole
    shown = CliRunner().invoke(app, ["recipes", "show", "vitt", "--set", "train.epochs=3"])
    assert shown.exit_code == 0 and not [name for name in listed if name not in shown.output]
    assert "Window sizes of SWSA" in CliRunner().invoke(app, ["recipes", "show", "windows"]).output
    with pytest.raises(ConfigError, match="'lambda_vitt': unknown; did you mean 'lambda-vitt'"):
        CliRunner().invoke(app, ["recipes", "show", "lambda_vitt"], catch_exceptions=False)
    everything = CliRunner().invoke(app, ["recipes"]).output
    assert all(name in everything for name in (*RECIPES, *ABLATIONS))


def test_a_pattern_is_a_setting() -> None:
    chosen = apply_overrides(recipe("youcook2"), ["train.freeze=t5.encoder.*,temporal.*"])
    assert chosen.train.freeze == ("t5.encoder.*", "temporal.*")
    one = apply_overrides(recipe("youcook2"), ["train.freeze=t5.encoder.*"])
    assert one.train.freeze == ("t5.encoder.*",)


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_row_is_a_recipe(name: str) -> None:
    rows = ablation(name).rows
    assert len({row.name for row in rows}) == len(rows)
    made = [apply_overrides(recipe("youcook2"), row.overrides) for row in rows]
    if name != "datastore":
        assert len(set(map(str, made))) == len(rows)


def test_batches_follow_from_seed_and_epoch() -> None:
    lengths = [n % 50 for n in range(103)]
    config = TrainConfig(batch=4, seed=3)
    first = batch_order(lengths, config, 0)
    assert first == batch_order(lengths, config, 0)
    assert first != batch_order(lengths, config, 1)
    assert len(first) == batches_per_epoch(103, config) == 26
    assert sorted(video for batch in first for video in batch) == list(range(103))
    assert sorted(map(len, first))[:2] == [3, 4]
    spread = [max(lengths[v] for v in batch) - min(lengths[v] for v in batch) for batch in first]
    plain = batch_order(lengths, TrainConfig(batch=4, seed=3, group_by_length=False), 0)
    loose = [max(lengths[v] for v in batch) - min(lengths[v] for v in batch) for batch in plain]
    assert sum(spread) < sum(loose) / 4
    assert batch_order([5], config, 0) == [[0]]
