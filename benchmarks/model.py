"""How fast are the stages of the model, and how much memory does training need?

    python benchmarks/model.py [windows] [transport] [load] [writer] [generate] [memory] [compile]
        [--quick]

CPU seconds (user + system) on one thread, ours and a peer side by side in one run, best of a few
rounds. The peers are Python loops over videos (and windows) of the same mathematics, written the
way the published code works; a leaner loop is timed beside them, and both ratios are told. `load`
opens the embedded model and one of T5-base size, `writer` times the embedded caption writer,
`generate` a whole video at full size with transformers' T5 and with ours. `memory` measures the
peak of a training step at T5-base size in a process of its own. One JSON line each. Decoding alone
is in decoding.py, search in search.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import best, cpu_seconds, peak_bytes, report
from torch import Tensor

from starc import config as configs
from starc.config import BeamSearch, Config, SwsaConfig, TransportConfig
from starc.decoder.caption_writer import Request
from starc.decoder.precision import has_bfloat16
from starc.inference.pipeline import EMBEDDED
from starc.model import checkpoint, transport
from starc.model.starc import Batch, STaRC
from starc.model.swsa import SlidingWindowAttention
from starc.model.temporal import TemporalEncoder
from starc.retrieval.datastore import CaptionStore
from starc.types import Sentence

VIDEOS, FRAMES, WIDTH = 32, 100, 768
KITCHEN = """so now we are going to take the onions and chop them really fine and put them in the
hot pan with some olive oil and then stir until they are golden brown"""


def show(what: str, ours: float, peer: float, difference: float, *, lean: float) -> None:
    """One line of results; `lean` is the best loop we know to write."""
    report(what, ours_s=ours, published_like_loop_s=peer, ratio_to_published_like=peer / ours,
           lean_loop_s=lean, ratio_to_lean=lean / ours, largest_difference=difference)  # fmt: skip


def loop_windows(module: SlidingWindowAttention, x_BTD: Tensor) -> Tensor:
    """SWSA as a loop over videos, sizes and windows that adds each window to the output."""
    total_BTD, count_BT1 = torch.zeros_like(x_BTD), torch.zeros_like(x_BTD[..., :1])
    _, frames, width = x_BTD.shape
    for video, x_TD in enumerate(x_BTD):
        for size, step in zip(module.config.sizes, module.config.steps(), strict=True):
            for first in range(0, frames - size + 1, step):
                tile_WD = x_TD[first : first + size]
                weight_WW = (tile_WD @ tile_WD.T / math.sqrt(width)).softmax(-1)
                total_BTD[video, first : first + size] += weight_WW @ tile_WD
                count_BT1[video, first : first + size] += 1
    return x_BTD + module.norm(total_BTD / (count_BT1 + 1e-6))


def lean_loop_windows(module: SlidingWindowAttention, x_BTD: Tensor) -> Tensor:
    """The same loop without writing into slices, whose gradient copies the whole output."""
    rows = []
    for x_TD in x_BTD:
        frames, width = x_TD.shape
        total_TD, count_T1 = torch.zeros_like(x_TD), torch.zeros(frames, 1)
        for size, step in zip(module.config.sizes, module.config.steps(), strict=True):
            for first in range(0, frames - size + 1, step):
                tile_WD = x_TD[first : first + size]
                attended_WD = (tile_WD @ tile_WD.T / math.sqrt(width)).softmax(-1) @ tile_WD
                total_TD = total_TD + F.pad(attended_WD, (0, 0, first, frames - first - size))
                count_T1[first : first + size] += 1
        rows.append(x_TD + module.norm(total_TD / (count_T1 + 1e-6)))
    return torch.stack(rows)


def bench_windows() -> None:
    """SWSA forward and backward at batch 32."""
    for stride in ("tile", "half"):
        module = SlidingWindowAttention(WIDTH, SwsaConfig(stride=stride, partial=False))
        x_BTD = torch.randn(VIDEOS, FRAMES, WIDTH, requires_grad=True)

        def step(
            attend: Callable[[SlidingWindowAttention, Tensor], Tensor],
            module: SlidingWindowAttention = module,
            x_BTD: Tensor = x_BTD,
        ) -> None:
            attend(module, x_BTD).square().sum().backward()

        def ours(module: SlidingWindowAttention, x_BTD: Tensor) -> Tensor:
            return module(x_BTD, None)  # type: ignore[no-any-return]

        with torch.no_grad():
            difference = (ours(module, x_BTD) - loop_windows(module, x_BTD)).abs().max().item()
        show(
            f"SWSA forward+backward, batch 32, stride {stride}",
            best(partial(step, ours), 6).cpu,
            best(partial(step, loop_windows), 1).cpu,
            difference,
            lean=best(partial(step, lean_loop_windows)).cpu,
        )


def loop_transport(
    problem: transport.Problem, options: TransportConfig, *, lean: bool = False
) -> Tensor:
    """Mirror descent as a loop over videos and steps.

    Unless lean it watches its objective in every step and lets autograd record, as published.
    """
    plans = []
    for cost_TK, frame_T in zip(problem.cost_BTK, problem.frame_mass_BT, strict=True):
        frames, anchors = cost_TK.shape
        frame_T1, anchor_1K = frame_T[:, None], torch.full((1, anchors), 1 / anchors)
        reach = int(frames * options.radius)
        kernel = torch.full((1, 1, 2 * reach + 1), 1 / options.radius)
        kernel[0, 0, reach] = 0
        apart_KK = 1 - torch.eye(anchors)
        mass_TK, step = frame_T1 * anchor_1K, None
        for _ in range(options.steps):
            if not lean:
                loop_objective(problem, options, mass_TK, cost_TK, frame_T1, kernel, apart_KK)
            structure_TK = F.conv1d((mass_TK @ apart_KK).T[:, None], kernel, padding=reach)[:, 0].T
            gradient_TK = problem.structure * structure_TK + (1 - problem.structure) * cost_TK
            gradient_TK = gradient_TK + problem.entropy * torch.log(mass_TK + 1e-12)
            pull_T1 = torch.log(mass_TK.sum(1, keepdim=True) / frame_T1 + 1e-12) + 1
            gradient_TK = gradient_TK + options.frame_penalty * pull_T1
            if step is None:
                step = 4 / gradient_TK.max().item()
            mass_TK = mass_TK * torch.exp(-step * gradient_TK)
            mass_TK = mass_TK / mass_TK.sum(0, keepdim=True) * anchor_1K
        plans.append(mass_TK * frames)
    return torch.stack(plans)


def loop_objective(
    problem: transport.Problem,
    options: TransportConfig,
    mass_TK: Tensor,
    cost_TK: Tensor,
    frame_T1: Tensor,
    kernel: Tensor,
    apart_KK: Tensor,
) -> float:
    """Value of the objective for one video."""
    reach = kernel.shape[-1] // 2
    structure_TK = F.conv1d((mass_TK @ apart_KK).T[:, None], kernel, padding=reach)[:, 0].T
    value = problem.structure * (structure_TK * mass_TK).sum()
    value = value + (1 - problem.structure) * (cost_TK * mass_TK).sum()
    value = value + problem.entropy * (mass_TK * torch.log(mass_TK + 1e-12)).sum()
    row_T1 = mass_TK.sum(1, keepdim=True)
    value = value + options.frame_penalty * (row_T1 * torch.log(row_T1 / frame_T1 + 1e-12)).sum()
    return float(value.detach())


def bench_transport() -> None:
    """Transport plans at batch 32, from features and saliency on."""
    options = TransportConfig(centre=True, bounded_step=False)
    torch.manual_seed(0)
    clip_BTD, anchor_KD = torch.randn(VIDEOS, FRAMES, WIDTH), torch.randn(8, WIDTH)
    prior_BT, mask_BT = torch.rand(VIDEOS, FRAMES), torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    problem = transport.pose(clip_BTD, anchor_KD, prior_BT, mask_BT, options, inference=True)
    ours = transport.solve(problem, options).mass_BTK
    difference = (ours - loop_transport(problem, options)).abs().max().item()
    recorded = dataclasses.replace(problem, cost_BTK=problem.cost_BTK.requires_grad_())
    with torch.no_grad():
        lean = best(lambda: loop_transport(problem, options, lean=True)).cpu
    show(
        "transport, batch 32",
        best(lambda: transport.solve(problem, options), 10).cpu,
        best(lambda: loop_transport(recorded, options)).cpu,
        difference,
        lean=lean,
    )


def bench_load() -> None:
    """Opening model folders: the embedded one, and one of T5-base size with random weights."""
    embedded = best(lambda: checkpoint.load(EMBEDDED, device="cpu"), 2)
    report("embedded model, loaded", cpu_s=embedded.cpu, wall_s=embedded.wall)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "base", STaRC(configs.published()))
        base = best(lambda: checkpoint.load(Path(folder) / "base", device="cpu"), 2)
    report("STaRC at T5-base size, loaded", target_s=0.5, cpu_s=base.cpu, wall_s=base.wall)


def bench_writer(minutes: int = 5) -> None:
    """Spans and captions of the embedded model for some minutes of made-up speech."""
    chance = random.Random(1)
    said = [
        Sentence(5.0 * n, 5.0 * n + 4.5, " ".join(chance.sample(KITCHEN.split(), 14)))
        for n in range(12 * minutes)
    ]
    spans = [(20.0 * n, 20.0 * n + 14) for n in range(12)]
    similar = [[" ".join(chance.sample(KITCHEN.split(), 6))] for _ in spans]
    exact: list[str] = []
    for precision in ("float32", "bfloat16", "int8"):
        if precision == "bfloat16" and not has_bfloat16(torch.device("cpu")):
            continue
        writer = checkpoint.load(EMBEDDED, device="cpu", precision=precision).writer
        assert writer is not None and writer.head is not None
        timing = best(partial(writer.timing, said, 60.0 * minutes), 1)
        written = best(partial(writer.write, [Request(said, spans, similar)]), 1)
        texts = [caption.text for caption in written.result[0]]
        exact = exact or texts
        report(f"embedded writer, {precision}", minutes_of_speech=minutes, spans_s=timing.cpu,
               events=len(spans), captions_s=written.cpu, peak_GB=peak_bytes() / 1e9,
               captions_as_float32=sum(map(str.__eq__, texts, exact)))  # fmt: skip


def bench_generate(tokens: int = 64) -> None:
    """One video at full size: 100 frames, 1000 speech tokens, four beams."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from decoding import peer_generate

    from support.stock_t5 import stock

    torch.manual_seed(0)
    config = configs.published()
    model, peer = STaRC(config).eval(), stock(config.t5)
    model.t5.load_state_dict({name: peer.state_dict()[name] for name in model.t5.state_dict()})
    features, text = config.temporal.features, config.t5.text_vocabulary
    batch = Batch(
        ids=("video",),
        clip_BTD=torch.randn(1, FRAMES, features),
        frame_mask_BT=torch.ones(1, FRAMES, dtype=torch.bool),
        speech_BL=torch.randint(2, text, (1, 1000)),
        speech_mask_BL=torch.ones(1, 1000, dtype=torch.bool),
    )
    one_L = {"speech_BL": batch.speech_BL[:, :1], "speech_mask_BL": batch.speech_mask_BL[:, :1]}
    silent = dataclasses.replace(batch, **one_L)
    store = CaptionStore([str(n) for n in range(1000)], torch.randn(1000, features))
    search = BeamSearch(beams=4, max_tokens=tokens, min_tokens=tokens, rules="transformers")

    @torch.no_grad()
    def published_like() -> list[tuple[int, ...]]:
        seen = model.encode(silent, store, inference=True)
        speech_BLD = peer.encoder(batch.speech_BL).last_hidden_state
        memory_BMD = torch.cat([seen.memory_BMD[:, :-1], speech_BLD], 1)
        return peer_generate(peer, memory_BMD, torch.ones(memory_BMD.shape[:2]), search)

    ours = best(lambda: model.generate([batch], store, search)[0].decoded, 1)
    theirs = best(published_like, 1)
    report("generate, one video, full size", tokens=tokens, ours_s=ours.cpu,
           transformers_s=theirs.cpu, ratio=theirs.cpu / ours.cpu,
           ids_equal=[one.ids for one in ours.result] == theirs.result)  # fmt: skip


def training_step(config: Config, videos: int = 4) -> dict[str, float]:
    """One step at this size with 100 frames, 1000 speech tokens and 256 target tokens per video."""
    torch.manual_seed(0)
    model = STaRC(config).train()
    features, text = config.temporal.features, config.t5.text_vocabulary
    batch = Batch(
        ids=tuple(f"video{n}" for n in range(videos)),
        clip_BTD=torch.randn(videos, FRAMES, features),
        frame_mask_BT=torch.ones(videos, FRAMES, dtype=torch.bool),
        speech_BL=torch.randint(2, text, (videos, 1000)),
        speech_mask_BL=torch.ones(videos, 1000, dtype=torch.bool),
        target_BL=torch.randint(2, text, (videos, 256)),
        salient_BT=torch.rand(videos, FRAMES) > 0.5,
        denoising_speech_BL=torch.randint(2, text, (videos, 800)),
        denoising_target_BL=torch.randint(2, text, (videos, 256)),
    )
    store = CaptionStore([str(n) for n in range(1000)], torch.randn(1000, features))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
    result = {}
    for name in ("first", "second"):
        start = cpu_seconds()
        model(batch, store).total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        model.t5.rescale_time_embeddings()
        result[f"{name}_step_s"] = cpu_seconds() - start
    return result | {"peak_GB": peak_bytes() / 1e9}


def bench_memory() -> None:
    """Peak memory of training at T5-base size, batch 4: generative and denoising pass, Adam."""
    subprocess.run([sys.executable, __file__, "step_alone"], check=True)


def step_alone() -> None:
    """The body of `bench_memory`, in a process of its own."""
    config = configs.paper()
    config = dataclasses.replace(config, t5=dataclasses.replace(config.t5, recompute=True))
    report("training step, T5-base, batch 4, t5.recompute", target_GB=10, **training_step(config))


def bench_compile() -> None:
    """torch.compile of the temporal encoder, full size, batch 4, forward and backward.

    The whole model breaks into many graphs (segments and retrieval are decisions, not tensors),
    so only its transformers are worth compiling.
    """
    module = TemporalEncoder(WIDTH, configs.paper().temporal).eval()
    x_BTD, mask_BT = torch.randn(4, FRAMES, WIDTH), torch.ones(4, FRAMES, dtype=torch.bool)

    def step(run: Callable[[Tensor, Tensor], Tensor]) -> None:
        run(x_BTD, mask_BT).square().sum().backward()

    compiled = torch.compile(module)
    report(
        "torch.compile, temporal encoder, batch 4",
        compiling_s=best(lambda: step(compiled), 1).cpu,
        plain_s=best(lambda: step(module)).cpu,
        compiled_s=best(lambda: step(compiled)).cpu,
    )


CLAIMS = {
    "windows": bench_windows,
    "transport": bench_transport,
    "load": bench_load,
    "writer": bench_writer,
    "generate": bench_generate,
    "memory": bench_memory,
    "compile": bench_compile,
}


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("claims", nargs="*", choices=[*CLAIMS, "step_alone", []], metavar="CLAIM")
    parser.add_argument("--quick", action="store_true", help="windows and transport only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.claims == ["step_alone"]:
        return step_alone()
    for name in options.claims or (["windows", "transport"] if options.quick else CLAIMS):
        CLAIMS[name]()


if __name__ == "__main__":
    main()
