"""PDVC held to the numbers of the published code, and its parts to simpler ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from starc.methods import pdvc
from support import set_prediction as check

ENTRIES = ("batch2", "vid0", "vid1_alone", "vid1_padded")
CASES = [(case, zeros) for case in "AB" for zeros in (False, True)]


@pytest.fixture(scope="module", params=CASES, ids=lambda p: f"{p[0]}-{'zeros' if p[1] else 'border'}")
def golden(request: pytest.FixtureRequest, shared: Path) -> tuple[Any, ...]:
    case, zeros = request.param
    folder = shared / "parity" / "methods"
    options, inputs, outputs = check.goldens(folder, case, zeros)
    state = torch.load(folder / f"{case}_state_dict.pt", weights_only=True)
    model = pdvc.load(state, options, check.WORDS, "zeros" if zeros else "border")
    return case, zeros, folder, model, inputs, outputs


@pytest.mark.parametrize("entry", ENTRIES)
def test_evaluation_is_the_published_one(golden: tuple[Any, ...], entry: str) -> None:
    case, _, _, model, inputs, outputs = golden
    wanted, given = outputs[entry]["eval"], inputs[entry]
    model.eval()
    annotated = check.annotated(given)
    with torch.no_grad():
        decoded = model(check.videos(given))
        losses, _ = model.losses(decoded, annotated, captions=False)
    held = check.check_decoded(decoded, wanted)
    held |= check.check_pairs(model, decoded, [one.target for one in annotated], wanted)
    check.check_losses(losses, wanted["evalloss"])
    if case == "B" or entry != "batch2":  # the published LSTM-DSA takes one video at a time
        held |= check.check_sentences(model, decoded, wanted)
        held |= check.check_proposals(model.propose(check.videos(given)), wanted)
    assert wanted.keys() - held == {"evalloss"}


@pytest.mark.parametrize("entry", ENTRIES)
def test_training_is_the_published_one(golden: tuple[Any, ...], entry: str) -> None:
    case, _, _, model, inputs, outputs = golden
    wanted, given = outputs[entry]["train"], inputs[entry]
    captions = case == "B" or entry != "batch2"
    check.without_dropout(model)
    model.zero_grad()
    annotated = check.annotated(given)
    decoded = model(check.videos(given))
    losses, matched = model.losses(decoded, annotated, captions)
    check.check_losses(losses, wanted["loss"])
    assert dict(model.config.weights) == wanted["weight"]
    total = model.total(losses)
    assert total.item() == pytest.approx(wanted["loss_total_weighted"], rel=1e-5)
    total.backward()
    held = check.check_decoded(decoded, wanted)
    held |= check.check_pairs(model, decoded, [one.target for one in annotated], wanted)
    held |= check.check_gradients(model, wanted)
    if captions:
        told = model.told(decoded, annotated, matched[-1])
        steps = max(log.shape[1] for log in told)
        cut = [wanted["cap_prob_train"][:, :steps].split([len(log) for log in told])]
        for log, theirs in zip(told, cut[0], strict=True):
            check.near(log, theirs[:, : log.shape[1]], "cap_prob_train", check.LOOSE)
        assert steps == wanted["cap_prob_train"].shape[1]
        words = [one.word_ES[events] for one, (_, events) in zip(annotated, matched[-1], strict=True)]
        assert torch.equal(torch.cat(words), wanted["cap_seq_train"])
        held |= {"cap_prob_train", "cap_seq_train"}
    assert wanted.keys() - held == {"loss", "weight", "loss_total_weighted"}


def test_event_lists_are_the_published_ones(golden: tuple[Any, ...]) -> None:
    case, zeros, folder, model, inputs, _ = golden
    suffix, weight = "_zeros" if zeros else "", model.config.sentence_weight
    model.eval()
    alone = {
        f"v_vid{video}": model.propose(check.videos(inputs[entry]))[0]
        for video, entry in enumerate(("vid0", "vid1_alone"))
    }
    check.check_events(alone, folder / f"{case}_events{suffix}.json", weight)
    if case == "B":
        both = model.propose(check.videos(inputs["batch2"]))
        found = {f"v_vid{video}": one for video, one in enumerate(both)}
        check.check_events(found, folder / f"B_events_batch2{suffix}.json", weight)
