"""Golden numbers of the published PDVC and CM², and the comparison of ours with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from starc.methods.matching import Pairs, Target, match
from starc.methods.proposals import Proposal, joint_score, rerank
from starc.methods.set_prediction import Annotated, Decoded, SetPredictor, VideoBatch
from starc.methods.words import Words

LOOSE, CLOSE = 1e-4, 2e-5
"""Absolute tolerances of log-probabilities and of everything else (README of the goldens)."""
WORDS = Words([f"w{number:03}" for number in range(1, 121)])


def goldens(folder: Path, case: str, zeros: bool) -> tuple[Any, Any, Any]:
    """Options, inputs and outputs of a case."""
    suffix = "_zeros" if zeros else ""
    return (
        json.loads((folder / f"{case}_config.json").read_text())["options"],
        torch.load(folder / f"{case}_inputs.pt", weights_only=True),
        torch.load(folder / f"{case}_outputs{suffix}.pt", weights_only=True),
    )


def cm2_state(folder: Path) -> dict[str, Tensor]:
    """The CM² weights, as a published state dict: shared tensors under all their names."""
    names: dict[str, Any] = {"__file__": ""}
    exec((folder / "golden_params.py").read_text("utf-8"), names)
    seed = json.loads((folder / "CM2_config.json").read_text("utf-8"))["extra"]["seed"]
    checks = json.loads((folder / "CM2_param_checks.json").read_text("utf-8"))
    state = {}
    for name, known in checks.items():
        value = torch.from_numpy(names["golden_param"](name, tuple(known["shape"]), seed))
        assert abs(value.double().sum().item() - known["sum"]) < 1e-4 * known["abs_sum"], name
        state[name] = value
        if name.startswith("caption_head.0."):
            state[name.replace(".0.", ".1.", 1)] = value
        if name.startswith("transformer.decoder.bbox_head."):
            state[name.removeprefix("transformer.decoder.")] = value
    unused = {
        "clip_model.logit_scale": torch.ones(()),
        "text_positional_encoding.pe": torch.ones(1),
    }
    return state | unused


def videos(given: dict[str, Tensor]) -> VideoBatch:
    return VideoBatch(given["video_tensor"], given["video_mask"], given["video_length"][:, 1])


def annotated(given: dict[str, Tensor]) -> list[Annotated]:
    result = []
    for video in range(len(given["video_tensor"])):
        mine = given["gt_gather_idx"] == video
        box, label = given[f"target/vid{video}/boxes"], given[f"target/vid{video}/labels"]
        result.append(
            Annotated(Target(box, label), given["cap_tensor"][mine], given["cap_mask"][mine])
        )
    return result


def near(ours: Tensor, wanted: Tensor, name: str, atol: float = CLOSE) -> None:
    assert ours.shape == wanted.shape, name
    if wanted.is_floating_point():
        torch.testing.assert_close(
            ours.detach().to(wanted.dtype),
            wanted,
            atol=atol,
            rtol=1e-5,
            msg=lambda m: f"{name}: {m}",
        )
    else:
        assert torch.equal(ours, wanted), name


def check_decoded(decoded: Decoded, wanted: dict[str, Any]) -> set[str]:
    """Compare every tensor up to the heads with its golden; returns their names."""
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
    if decoded.retrieved is not None and decoded.text_BWD is not None:
        text_BWD, levels = decoded.text_BWD, len(memory.sizes)
        videos, windows = text_BWD.shape[:2]
        ours |= {
            "text_encoder_memory": text_BWD,
            "text_temporal_shapes": torch.tensor([windows] * levels),
            "text_valid_ratios": torch.ones(videos, levels),
            "text_mask_flatten": torch.zeros(videos, windows * levels, dtype=torch.bool),
            "ret/topk_indices": decoded.retrieved.index_BWK[0],
            "ret/topk_scores": decoded.retrieved.score_BWK[0],
            "ret/down_proj_in": decoded.retrieved.mean_BWD,
        }
    for level, frames in enumerate(decoded.levels):
        ours[f"base_src_{level}"] = frames
        ours[f"base_mask_{level}"] = paddings[level]
        ours[f"base_pos_{level}"] = decoded.positions[level]
    for layer, output in enumerate(decoded.outputs):
        prefix = "" if layer == len(decoded.outputs) - 1 else f"aux{layer}_"
        ours[f"{prefix}pred_logits"] = output.logit_BQC
        ours[f"{prefix}pred_boxes"] = output.box_BQ2
        ours[f"{prefix}pred_count"] = output.count_BN
    present = ours.keys() & wanted.keys()
    for name in present:
        near(ours[name], wanted[name], name)
    return present


def check_losses(losses: dict[str, Tensor], wanted: dict[str, float]) -> None:
    assert losses.keys() == wanted.keys()
    for name, loss in losses.items():
        assert abs(loss.item() - wanted[name]) <= 1e-5 * abs(wanted[name]) + 1e-7, name


def check_pairs(
    model: SetPredictor, decoded: Decoded, targets: list[Target], wanted: dict[str, Any]
) -> set[str]:
    """Pairs of every layer, and the last layer's with each event four times."""
    present = set()
    for layer, output in enumerate(decoded.outputs):
        last = layer == len(decoded.outputs) - 1
        kinds = {"last": 1, "last_many2one": 4} if last else {f"aux{layer}": 1}
        for kind, repeat in kinds.items():
            pairs = match(output, targets, model.config.matching, repeat)
            for video, (queries, events) in enumerate(pairs):
                for name, found in (("query", queries), ("gt", events)):
                    key = f"match_{kind}_vid{video}_{name}"
                    assert torch.equal(found, wanted[key]), key
                    present.add(key)
    return present


def check_sentences(model: SetPredictor, decoded: Decoded, wanted: dict[str, Any]) -> set[str]:
    """Greedy captions, and the log-probabilities of every step."""
    head, context = model.caption_head[-1], decoded.context(-1)
    words, logs = head.greedy(context, model.config.caption_words)
    near(words, wanted["seq"], "seq")
    near(logs, wanted["cap_prob_eval"], "cap_prob_eval", LOOSE)
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


def check_teacher_forcing(
    model: SetPredictor,
    decoded: Decoded,
    given: list[Annotated],
    pairs: list[Pairs],
    wanted: dict[str, Any],
) -> set[str]:
    """Log-probabilities of the matched captions in the last layer; CM² goldens hold none."""
    words = [one.word_ES[events] for one, (_, events) in zip(given, pairs, strict=True)]
    assert torch.equal(torch.cat(words), wanted["cap_seq_train"])
    if "cap_prob_train" not in wanted:
        return {"cap_seq_train"}
    ours = model.caption_log_probs(decoded, given, pairs)
    assert max(log.shape[1] for log in ours) == wanted["cap_prob_train"].shape[1]
    theirs = wanted["cap_prob_train"].split([len(log) for log in ours])
    for log, golden in zip(ours, theirs, strict=True):
        near(log, golden[:, : log.shape[1]], "cap_prob_train", LOOSE)
    return {"cap_seq_train", "cap_prob_train"}


def watch_text(model: SetPredictor) -> dict[str, Tensor]:
    """Outputs of the text projection and of the attention to text in the next forward pass."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module) -> None:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            seen[name] = output.detach()
            handle.remove()

        handle = module.register_forward_hook(hook)

    if model.down_proj is not None:
        keep("ret/down_proj_out", model.down_proj)
        for index, layer in enumerate(model.transformer.decoder.layers):
            keep(f"ret/text_cross_out_{index}", layer.text_cross)
    return seen


def check_text(seen: dict[str, Tensor], wanted: dict[str, Any]) -> set[str]:
    for name in seen.keys() & wanted.keys():
        near(seen[name], wanted[name], name)
    return seen.keys() & wanted.keys()


def check_proposals(
    found: list[list[Proposal]], given: dict[str, Tensor], wanted: dict[str, Any]
) -> set[str]:
    """Predictions of the queries by score."""
    present = set()
    for video, one in enumerate(found):
        seconds = given["video_length"][video, 1].item()
        ours = {
            "scores": torch.tensor([p.score for p in one]),
            "labels": torch.tensor([p.label for p in one]),
            "boxes": torch.tensor([[p.start, p.end] for p in one]),
            "query_id": torch.tensor([p.query for p in one]),
            "pred_seq_len": torch.tensor(one[0].count),
            "caption_scores": torch.tensor([p.sentence_score for p in one], dtype=torch.float64),
        }
        tolerance = {"boxes": CLOSE * seconds, "caption_scores": LOOSE * 12}  # s; sum over words
        for name, tensor in ours.items():
            key = f"post/vid{video}/{name}"
            near(tensor, wanted[key], key, tolerance.get(name, CLOSE))
            present.add(key)
        present.add(f"post/vid{video}/vid_duration")
    return present


def check_events(found: dict[str, list[Proposal]], file: Path, weight: float) -> None:
    """The published result files, before and after ranking."""
    wanted = json.loads(file.read_text("utf-8"))
    for stage in ("before_rerank", "after_rerank"):
        results = wanted[stage]["results"]
        assert results.keys() == found.keys()
        for video, events in results.items():
            ours = found[video] if stage == "before_rerank" else rerank(found[video], weight)
            assert [p.query for p in ours] == [e["query_id"] for e in events], (stage, video)
            for mine, event in zip(ours, events, strict=True):
                assert mine.sentence == event["sentence"]
                assert mine.count == event["pred_event_count"]
                seconds = CLOSE * event["vid_duration"]
                for a, b, tolerance in (
                    (mine.start, event["timestamp"][0], seconds),
                    (mine.end, event["timestamp"][1], seconds),
                    (mine.score, event["proposal_score"], CLOSE),
                    (mine.sentence_score, event["sentence_score"], LOOSE * 12),
                    *(
                        [(joint_score(mine, weight), event["joint_score"], LOOSE)]
                        if "joint_score" in event
                        else []
                    ),
                ):
                    assert abs(a - b) <= tolerance, (stage, video, mine)


def check_gradients(model: nn.Module, wanted: dict[str, Any]) -> set[str]:
    """The norm of every gradient, and those gradients that are stored whole."""
    ours = dict(model.named_parameters())
    for name, norm in wanted["gradnorm"].items():
        if norm is None:  # never used: without gradient, or not in our model at all
            assert name not in ours or ours[name].grad is None, name
            continue
        gradient = ours[name].grad
        if norm >= 1e-4:
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
    """Training mode with all dropout off."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.LSTM):
            module.dropout = 0.0
