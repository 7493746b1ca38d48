"""Golden numbers of the published PDVC and CM², and how ours are held to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from starc.methods.matching import Target, match
from starc.methods.pdvc import Annotated, Decoded, Pdvc, Videos
from starc.methods.proposals import Proposal, joint_score, reranked

LOOSE, CLOSE = 1e-4, 2e-5
"""Absolute tolerance of log-probabilities and of the rest, as measured against float64."""
WORDS = {number: f"w{number:03}" for number in range(1, 1000)}


def goldens(folder: Path, case: str, zeros: bool) -> tuple[Any, Any, Any]:
    """Options, inputs and outputs of a case."""
    suffix = "_zeros" if zeros else ""
    return (
        json.loads((folder / f"{case}_config.json").read_text())["options"],
        torch.load(folder / f"{case}_inputs.pt", weights_only=True),
        torch.load(folder / f"{case}_outputs{suffix}.pt", weights_only=True),
    )


def videos(given: dict[str, Tensor]) -> Videos:
    return Videos(given["video_tensor"], given["video_mask"], given["video_length"][:, 1])


def annotated(given: dict[str, Tensor]) -> list[Annotated]:
    found = []
    for video in range(len(given["video_tensor"])):
        mine = given["gt_gather_idx"] == video
        box, label = given[f"target/vid{video}/boxes"], given[f"target/vid{video}/labels"]
        found.append(
            Annotated(Target(box, label), given["cap_tensor"][mine], given["cap_mask"][mine])
        )
    return found


def near(ours: Tensor, wanted: Tensor, name: str, atol: float = CLOSE) -> None:
    assert ours.shape == wanted.shape, name
    if wanted.is_floating_point():
        torch.testing.assert_close(
            ours.detach().to(wanted.dtype), wanted, atol=atol, rtol=1e-5, msg=lambda m: f"{name}: {m}"
        )
    else:
        assert torch.equal(ours, wanted), name


def check_decoded(decoded: Decoded, wanted: dict[str, Any]) -> set[str]:
    """Holds every tensor on the way to the heads to its golden; says which were there."""
    memory = decoded.memory
    ours = {
        "encoder_memory": memory.value_BMD,
        "temporal_shapes": torch.tensor(memory.sizes),
        "valid_ratios": memory.valid_BL,
        "mask_flatten": memory.padding_BM,
        "init_reference": decoded.references[0],
        "decoder_tgt0": decoded.query_BQD,
        "decoder_query_pos": decoded.position_BQD,
        "decoder_hs": torch.stack(decoded.states),
        "inter_references": torch.stack(decoded.references[1:]),
    }
    paddings = memory.padding_BM.split(memory.sizes, dim=1)
    for level, frames in enumerate(decoded.levels):
        ours[f"base_src_{level}"] = frames
        ours[f"base_mask_{level}"] = paddings[level]
        ours[f"base_pos_{level}"] = decoded.positions[level]
    for layer, answer in enumerate(decoded.answers):
        prefix = "" if layer == len(decoded.answers) - 1 else f"aux{layer}_"
        ours[f"{prefix}pred_logits"] = answer.logit_BQC
        ours[f"{prefix}pred_boxes"] = answer.box_BQ2
        ours[f"{prefix}pred_count"] = answer.count_BN
    present = ours.keys() & wanted.keys()
    for name in present:
        near(ours[name], wanted[name], name)
    return present


def check_losses(losses: dict[str, Tensor], wanted: dict[str, float]) -> None:
    assert losses.keys() == wanted.keys()
    for name, loss in losses.items():
        assert abs(loss.item() - wanted[name]) <= 1e-5 * abs(wanted[name]) + 1e-7, name


def check_pairs(
    model: Pdvc, decoded: Decoded, targets: list[Target], wanted: dict[str, Any]
) -> set[str]:
    """Pairs of every layer, and the last layer's with each event four times."""
    present = set()
    for layer, answer in enumerate(decoded.answers):
        last = layer == len(decoded.answers) - 1
        kinds = {"last": 1, "last_many2one": 4} if last else {f"aux{layer}": 1}
        for kind, repeat in kinds.items():
            pairs = match(answer, targets, model.config.costs, repeat)
            for video, (queries, events) in enumerate(pairs):
                for name, found in (("query", queries), ("gt", events)):
                    key = f"match_{kind}_vid{video}_{name}"
                    assert torch.equal(found, wanted[key]), key
                    present.add(key)
    return present


def check_sentences(model: Pdvc, decoded: Decoded, wanted: dict[str, Any]) -> set[str]:
    """The greedy sentences, and every log-probability on the way."""
    head, context = model.caption_head[-1], decoded.context(len(decoded.states) - 1)
    words, told = head.write(context, model.config.longest_caption)
    near(words, wanted["seq"], "seq")
    near(told, wanted["cap_prob_eval"], "cap_prob_eval", LOOSE)
    present = {"seq", "cap_prob_eval", "margin_min_greedy", "margin_min_score_rank"}
    fed = wanted["sample_input_ids"]
    state, prepared = None, head.core.prepare(context)
    for step in range(fed.shape[1]):
        log, state = head.step(fed[:, step], state, prepared)
        if "sample_logprobs" in wanted:
            near(log, wanted["sample_logprobs"][:, step], "sample_logprobs", LOOSE)
        if step + 1 < fed.shape[1]:
            assert torch.equal(log.argmax(1), fed[:, step + 1]), "sample_input_ids"
    return present | {"sample_input_ids", "sample_logprobs"} & wanted.keys()


def check_proposals(found: list[list[Proposal]], wanted: dict[str, Any]) -> set[str]:
    """What the queries say, in the order of their scores."""
    present = set()
    for video, one in enumerate(found):
        ours = {
            "scores": torch.tensor([p.score for p in one]),
            "labels": torch.tensor([p.label for p in one]),
            "boxes": torch.tensor([[p.start, p.end] for p in one]),
            "query_id": torch.tensor([p.query for p in one]),
            "pred_seq_len": torch.tensor(one[0].count),
            "caption_scores": torch.tensor([p.sentence_score for p in one], dtype=torch.float64),
        }
        for name, tensor in ours.items():
            key = f"post/vid{video}/{name}"
            # Boxes are in seconds: the tolerance of shares, times a duration.
            near(tensor, wanted[key], key, LOOSE * 20 if name == "boxes" else LOOSE)
            present.add(key)
        present.add(f"post/vid{video}/vid_duration")
    return present


def check_events(found: dict[str, list[Proposal]], file: Path, weight: float) -> None:
    """The published result files, before and after ranking."""
    wanted = json.loads(file.read_text())
    for stage, results in wanted.items():
        if stage not in ("before_rerank", "after_rerank"):
            continue
        assert results["results"].keys() == found.keys()
        for video, events in results["results"].items():
            ours = found[video] if stage == "before_rerank" else reranked(found[video], weight)
            assert [p.query for p in ours] == [e["query_id"] for e in events], (stage, video)
            for mine, event in zip(ours, events, strict=True):
                assert mine.sentence == event["sentence"]
                assert mine.count == event["pred_event_count"]
                numbers = [mine.start, mine.end, mine.score, mine.sentence_score]
                theirs = [*event["timestamp"], event["proposal_score"], event["sentence_score"]]
                if "joint_score" in event:
                    numbers.append(joint_score(mine, weight))
                    theirs.append(event["joint_score"])
                for a, b in zip(numbers, theirs, strict=True):
                    assert abs(a - b) < 2e-3 if a is numbers[0] or a is numbers[1] else abs(
                        a - b
                    ) < 2 * LOOSE


def check_gradients(model: nn.Module, wanted: dict[str, Any]) -> set[str]:
    """The norm of every gradient, and the whole of those that are kept whole."""
    ours = dict(model.named_parameters())
    assert ours.keys() >= wanted["gradnorm"].keys()
    for name, norm in wanted["gradnorm"].items():
        gradient = ours[name].grad
        if norm is None:
            assert gradient is None or not gradient.any(), name
        elif norm >= 1e-4:
            assert gradient is not None, name
            assert abs(gradient.double().norm().item() / norm - 1) < 1e-3, name
    whole = {name for name in wanted if name.startswith("grad/")}
    for name in whole:
        gradient = ours[name.removeprefix("grad/")].grad
        assert gradient is not None
        scale = max(1.0, wanted[name].abs().max().item())
        near(gradient, wanted[name], name, LOOSE * scale)
    return whole | {"gradnorm"}


def without_dropout(model: nn.Module) -> None:
    """Training mode in which nothing is left to chance."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.LSTM):
            module.dropout = 0.0
