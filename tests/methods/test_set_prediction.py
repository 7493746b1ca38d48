"""PDVC and CM² against golden numbers of the published code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from starc import methods
from starc.methods.set_prediction import SetPredictor
from support import set_prediction as check

ENTRIES = {
    "A": ("batch2", "vid0", "vid1_alone", "vid1_padded"),
    "B": ("batch2", "vid0", "vid1_alone", "vid1_padded"),
    "CM2": ("vid0", "vid1_alone"),
}
CASES = [(case, padding) for case in ENTRIES for padding in ("border", "zeros")]
EACH = [(*one, entry) for one in CASES for entry in ENTRIES[one[0]]]
Golden = tuple[SetPredictor, Any, Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the goldens were made: one ReLU input of a CM² case is 1e-6 from zero."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def goldens(shared: Path) -> Any:
    """Model, inputs and outputs of a case, read once."""
    folder, known = shared / "parity" / "methods", {}

    def golden(case: str, padding: Any) -> Golden:
        if (case, padding) not in known:
            options, inputs, outputs = check.goldens(folder, case, padding == "zeros")
            bank = inputs.pop("memory_bank", None)
            if case == "CM2":
                state, bank = check.cm2_state(folder), bank[:, 0]
            else:
                state = torch.load(folder / f"{case}_state_dict.pt", weights_only=True)
            model = methods.load(state, options, words=check.WORDS, bank=bank, padding=padding)
            known[case, padding] = model, inputs, outputs
        return known[case, padding]

    return golden


def has_captions(case: str, entry: str) -> bool:
    """The published LSTM-DSA head takes one video at a time."""
    return case == "B" or entry != "batch2"


@pytest.mark.parametrize(("case", "padding", "entry"), EACH)
def test_evaluation_equals_the_published(goldens: Any, case: str, padding: str, entry: str) -> None:
    model, inputs, outputs = goldens(case, padding)
    wanted, given = outputs[entry]["eval"], inputs[entry]
    model.eval()
    annotated, text = check.annotated(given), check.watch_text(model)
    with torch.no_grad():
        decoded = model(check.videos(given))
        losses, _ = model.losses(decoded, annotated, captions=False)
    compared = check.check_decoded(decoded, wanted) | check.check_text(text, wanted)
    compared |= check.check_pairs(model, decoded, [one.target for one in annotated], wanted)
    check.check_losses(losses, wanted["evalloss"])
    if has_captions(case, entry):
        compared |= check.check_sentences(model, decoded, wanted)
        compared |= check.check_proposals(model.propose(check.videos(given)), given, wanted)
    assert wanted.keys() - compared == {"evalloss"}


@pytest.mark.parametrize(("case", "padding", "entry"), EACH)
def test_training_equals_the_published(goldens: Any, case: str, padding: str, entry: str) -> None:
    model, inputs, outputs = goldens(case, padding)
    wanted, given = outputs[entry]["train"], inputs[entry]
    check.without_dropout(model)
    model.zero_grad()
    annotated, text = check.annotated(given), check.watch_text(model)
    decoded = model(check.videos(given))
    losses, matched = model.losses(decoded, annotated, has_captions(case, entry))
    check.check_losses(losses, wanted["loss"])
    for name, weight in wanted["weight"].items():
        assert model.config.loss.weight(name) == weight, name
    total = model.total(losses)
    assert total.item() == pytest.approx(wanted["loss_total_weighted"], rel=1e-5)
    total.backward()
    compared = check.check_decoded(decoded, wanted) | check.check_text(text, wanted)
    compared |= check.check_pairs(model, decoded, [one.target for one in annotated], wanted)
    compared |= check.check_gradients(model, wanted)
    if has_captions(case, entry):
        compared |= check.check_teacher_forcing(model, decoded, annotated, matched[-1], wanted)
    assert wanted.keys() - compared == {"loss", "weight", "loss_total_weighted"}


@pytest.mark.parametrize(("case", "padding"), CASES)
def test_event_lists_equal_the_published(
    goldens: Any, shared: Path, case: str, padding: str
) -> None:
    model, inputs, _ = goldens(case, padding)
    folder, suffix = shared / "parity" / "methods", "_zeros" if padding == "zeros" else ""
    model.eval()
    alone = {
        f"v_vid{video}": model.propose(check.videos(inputs[entry]))[0]
        for video, entry in enumerate(("vid0", "vid1_alone"))
    }
    weight = model.config.sentence_weight
    check.check_events(alone, folder / f"{case}_events{suffix}.json", weight)
    if case == "B":
        both = model.propose(check.videos(inputs["batch2"]))
        found = {f"v_vid{video}": one for video, one in enumerate(both)}
        check.check_events(found, folder / f"B_events_batch2{suffix}.json", weight)
