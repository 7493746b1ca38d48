"""Do we give the numbers of the published code? One JSON line per case in a folder.

    python benchmarks/parity.py [DIR]

DIR is $STARC_SHARED/parity/model unless named. It holds `weights.pt` (published names, and the
hyper-parameters), `bank_embeds.pt` (a datastore), `case_*.pt` (inputs and what the published code
made of them at every stage) and perhaps `train_step_*.pt` (gradients, and the weights after one
step). "errors" are the largest absolute
differences of a stage, for losses and gradients relative ones; "equal" says whether assignments,
segments, retrieved captions and generated ids are the same; "ok" whether all is within tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from starc.config import BeamSearch, with_training_of
from starc.model import checkpoint, published, segments
from starc.model.starc import Batch, STaRC, VideoEncoding
from starc.retrieval.datastore import CaptionStore

TOLERANCE = {"plan": 1e-3, "gradient": 1e-3}
"""Largest error allowed, where it is not 1e-4."""
ADAM_EPS = 1e-8
"""Where a clipped gradient is smaller, Adam's first step is its rounding noise divided by this."""


class Report:
    """Largest error of every stage and equality of every decision."""

    def __init__(self, case: str) -> None:
        self.case = case
        self.errors: dict[str, float] = {}
        self.equal: dict[str, bool] = {}
        self.notes: dict[str, float] = {}

    def close(self, stage: str, ours: Tensor, golden: Tensor, *, relative: bool = False) -> None:
        """Note the difference of two tensors."""
        error = (ours.detach().double() - golden.double()).abs().max().item()
        if relative:
            error /= max(golden.double().abs().max().item(), 1e-12)
        self.errors[stage] = max(error, self.errors.get(stage, 0.0))

    def same(self, what: str, ours: Any, golden: Any) -> None:
        """Note whether two decisions are the same."""
        self.equal[what] = self.equal.get(what, True) and ours == golden

    @property
    def ok(self) -> bool:
        """Everything equal and within tolerance."""
        within = (error <= TOLERANCE.get(stage, 1e-4) for stage, error in self.errors.items())
        return all(within) and all(self.equal.values())

    def line(self) -> str:
        """The report as one line of JSON."""
        errors = {stage: float(f"{error:.2e}") for stage, error in self.errors.items()}
        parts = {"case": self.case, "ok": self.ok, "errors": errors, "equal": self.equal}
        return json.dumps(parts | ({"notes": self.notes} if self.notes else {}))


def load_model(folder: Path) -> STaRC:
    """The published weights through our own import, without dropout as the goldens were made."""
    with tempfile.TemporaryDirectory() as out:
        imported = checkpoint.import_published(folder / "weights.pt", Path(out) / "model")
        model = checkpoint.load(Path(out) / "model", device="cpu").model
    config = with_training_of(model.config, imported.config)
    config = dataclasses.replace(
        config,
        temporal=dataclasses.replace(config.temporal, dropout=0.0),
        t5=dataclasses.replace(config.t5, dropout=0.0),
    )
    bare = STaRC(config)
    bare.load_state_dict(model.state_dict())
    return bare


def load_store(folder: Path) -> CaptionStore:
    """The datastore; each caption is its own number, so that segments tell what was retrieved."""
    bank_ND = torch.load(folder / "bank_embeds.pt", weights_only=True).flatten(1)
    return CaptionStore([str(row) for row in range(len(bank_ND))], bank_ND)


def to_batch(inputs: dict[str, Any]) -> Batch:
    """A collated batch of the published code. It has no frame mask: padding is zeros."""
    clip_BTD = inputs["video"]
    return Batch(
        ids=tuple(inputs["video_id"]),
        clip_BTD=clip_BTD,
        frame_mask_BT=torch.ones(clip_BTD.shape[:2], dtype=torch.bool),
        speech_BL=inputs["input_tokens"],
        speech_mask_BL=inputs["input_tokens"] != 0,
        target_BL=inputs["output_tokens"],
        salient_BT=inputs["saliency_all_labels"],
        denoising_speech_BL=inputs["denoising_input_tokens"],
        denoising_target_BL=inputs["denoising_output_tokens"],
    )


def compare_seen(report: Report, seen: VideoEncoding, golden: dict[str, Any], turn: int) -> None:
    """The video side of one pass: X', saliency, plan, segments, retrieval, prompts."""
    videos = len(seen.segments)
    first = turn * videos
    for stage, ours, name in (
        ("x_refined", seen.refined_BTD, "X_refined"),
        ("saliency", seen.saliency_BT, "saliency_scores"),
        ("prompt", seen.prompt_BTD, "saliency_tok_proj.out"),
        ("retrieved", seen.retrieved_BSD, "proj_r2t.out"),
    ):
        if ours is not None and (wanted := golden.get(f"{name}#{turn}")) is not None:
            report.close(stage, ours, wanted)
    for video, found in enumerate(seen.segments):
        plan = golden.get(f"ot_plan#{first + video}")
        if seen.plan is not None and plan is not None:
            report.close("plan", seen.plan.mass_BTK[video], plan[0])
            assigned = seen.plan.anchor_BT[video].tolist()
            report.same("assignments", assigned, plan[0].argmax(-1).tolist())
        if (meta := golden.get(f"segments_meta#{turn}")) is not None:
            ours = [(segment.first, segment.stop, segment.anchor) for segment in found]
            wanted = [(item["start"], item["end"], item["anchor"]) for item in meta[video]]
            report.same("segments", ours, wanted)
        if (index := golden.get(f"ret_topk_idx#{first + video}")) is not None:
            ranked = segments.ranked(found)
            ours = [[int(hit.caption) for hit in segment.captions] for segment in ranked]
            report.same("retrieved", ours, index.tolist())


def compare_training(report: Report, model: STaRC, store: CaptionStore, case: dict) -> None:
    """Both passes of the training forward, losses and the norms of all gradients."""
    golden, batch = case["fwd"], to_batch(case["inputs"])
    model.train()
    encoded = model.encode(batch, store)
    report.close("x", encoded.video.video_BTD, golden["proj_v2t.out#0"])
    compare_seen(report, encoded.video, golden, 0)
    compare_seen(report, model.encode_video(encoded.video.refined_BTD, batch, store), golden, 1)
    mask_BM = golden["enc_mask#0"].bool()
    report.same("memory_mask", encoded.memory_mask_BM.tolist(), mask_BM.tolist())
    report.close("memory", encoded.memory_BMD[mask_BM], golden["enc_concat#0"][mask_BM])
    model.zero_grad()
    losses = model(batch, store)
    for stage, ours, wanted in (
        ("loss_caption", losses.caption, golden["ce_loss#0"]),
        ("loss_denoising", losses.denoising, golden["ce_loss#1"]),
        ("loss_saliency", losses.saliency, golden["saliency_loss#0"]),
        ("loss_total", losses.total, case["loss_generative"] + case["loss_denoising"]),
    ):
        report.close(stage, ours, wanted, relative=True)
    losses.total.backward()
    for name, parameter in model.named_parameters():
        norm = case["grad_norms"][published.to_published(name)]
        report.same("gradient_none", parameter.grad is None, norm is None)
        if parameter.grad is not None and norm is not None:
            report.close("gradient", parameter.grad.norm(), norm, relative=True)


def compare_inference(report: Report, model: STaRC, store: CaptionStore, case: dict) -> None:
    """The inference forward, and the ids of every kind of decoding in the case."""
    golden, batch = case["gen"], to_batch(case["inputs"])
    model.eval()
    with torch.no_grad():
        encoded = model.encode(batch, store, inference=True)
    compare_seen(report, encoded.video, golden, 0)
    mask_BM = golden["gen_enc_mask#0"].bool()
    report.same("memory_mask", encoded.memory_mask_BM.tolist(), mask_BM.tolist())
    if "gen_enc_concat#0" in golden:
        wanted = golden["gen_enc_concat#0"][mask_BM]
        report.close("memory_inference", encoded.memory_BMD[mask_BM], wanted)
    for name, ids_BL, scores_B in decodings(case):
        found = model.generate([batch], store, search_of(name, ids_BL))[0].decoded
        padded = [[0, *one.ids] + [0] * (ids_BL.shape[1] - 1 - len(one.ids)) for one in found]
        report.same(name, padded, ids_BL.tolist())
        if scores_B is not None:
            report.close("score", torch.tensor([one.score for one in found]), scores_B)


def decodings(case: dict[str, Any]) -> list[tuple[str, Tensor, Tensor | None]]:
    """Name, ids and scores of every decoding in the case."""
    golden = case["gen"]
    found = [("beam4_ids", golden["gen_ids#0"], golden.get("gen_sequences_scores#0"))]
    for key, value in case.items():
        if key.startswith("gen_") and key.endswith("_ids"):
            scores = case.get(key.split("_lp")[0] + "_scores")
            found.append((key.removeprefix("gen_"), value, scores))
    return found


def search_of(name: str, ids_BL: Tensor) -> BeamSearch:
    """The search a name like beam4_min24_lp0.6_rp1.2_ids tells of; the length is the goldens'."""

    def number(key: str, otherwise: float) -> float:
        match = re.search(rf"{key}(\d+(?:\.\d+)?)", name)
        return float(match[1]) if match else otherwise

    longest = ids_BL.shape[1] - 1
    # min_length of transformers counts the start id.
    return BeamSearch(
        beams=int(number("beam", 1)),
        max_tokens=longest,
        min_tokens=max(0, min(int(number("_min", 0)) - 1, longest)),
        length_penalty=number("_lp", 1.0),
        repetition_penalty=number("_rp", 1.0),
    )


def compare_step(folder: Path, path: Path, store: CaptionStore) -> Report:
    """One optimiser step: clip 1.0, Adam at 1e-3, time embeddings rescaled."""
    report = Report(path.stem)
    golden = torch.load(path, weights_only=True)
    case = torch.load(folder / path.name.replace("train_step", "case"), weights_only=True)
    model = load_model(folder).train()
    model(to_batch(case["inputs"]), store).total.backward()
    for name, parameter in model.named_parameters():
        wanted = golden["grads"][published.to_published(name)]
        if wanted is not None:
            report.close("gradient", parameter.grad, wanted, relative=True)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    report.close("gradient_norm", norm, golden["total_grad_norm"], relative=True)
    optimiser = torch.optim.Adam([it for it in model.parameters() if it.requires_grad], lr=1e-3)
    optimiser.step()
    model.t5.rescale_time_embeddings()
    state = golden["state_after_adam_lr1e-3_clip1_renorm"]
    below = []
    for name, tensor in model.state_dict().items():
        wanted = state[published.to_published(name)]
        gradient = golden["grads"].get(published.to_published(name))
        clear = torch.ones_like(tensor, dtype=torch.bool)
        if gradient is not None:
            clear = (gradient / norm).abs() > ADAM_EPS
            clear |= gradient == 0
        if clear.any():
            report.close("state", tensor[clear], wanted[clear])
        below.append((tensor - wanted)[~clear].abs())
    below_eps = torch.cat(below)
    report.notes = {
        "state_where_gradient_below_adam_eps": float(f"{below_eps.max().item():.2e}"),
        "entries_below": below_eps.numel(),
    }
    return report


def compare_case(path: Path, model: STaRC, store: CaptionStore) -> Report:
    """One batch: training forward and gradients, inference forward and generated ids."""
    report = Report(path.stem)
    case = torch.load(path, weights_only=True)
    config = model.config
    if top_k := case.get("topk_for_retrieval"):
        chosen = dataclasses.replace(config.segments, top_k=top_k)
        model.config = dataclasses.replace(config, segments=chosen)
    if "fwd" in case:
        compare_training(report, model, store, case)
    compare_inference(report, model, store, case)
    model.config = config
    return report


def run(folder: Path) -> Iterator[Report]:
    """All cases of a folder."""
    store, model = load_store(folder), load_model(folder)
    for path in sorted(folder.glob("case_*.pt")):
        yield compare_case(path, model, store)
    for path in sorted(folder.glob("train_step_*.pt")):
        yield compare_step(folder, path, store)


def main() -> int:
    """Exit 1 if any case is out of tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--quick", action="store_true", help="the cases of the tests only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ok = True
    if options.quick:
        options.folder = Path(__file__).parents[1] / "tests/data/model"
    elif options.folder is None:
        from measure import shared

        options.folder = shared("parity/model")
    for report in run(options.folder):
        print(report.line(), flush=True)
        ok = ok and report.ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
