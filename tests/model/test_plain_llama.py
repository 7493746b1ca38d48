"""STaRC with a language model of the hub as decoder: `--init llama:FOLDER`, LoRA or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from starc.cli import app
from starc.model import checkpoint
from support import small_training as small
from support.stock_llama import byte_tokenizer, pair


@pytest.mark.parametrize("lora", [0, 2])
def test_starc_is_trained_from_it_and_evaluated(tmp_path: Path, lora: int) -> None:
    ours, theirs = pair()
    theirs.save_pretrained(tmp_path / "hub")
    byte_tokenizer().save(str(tmp_path / "hub/tokenizer.json"))
    files = small.files(tmp_path / "data")
    del files[files.index("--tokenizer") : files.index("--tokenizer") + 2]
    sizes = [one for one in small.SMALL if "model.t5" not in one and "heads" not in one]
    sizes += [f"model.llama.lora={lora}", "model.decoding.max_tokens=20"]
    sizes.append("model.retrieval.form=text" if lora else "model.retrieval=none")
    files += ["--datastore", str(tmp_path / "data/datastore")] if lora else []
    settings = [part for setting in sizes for part in ("--set", setting)]
    command = ["train", "youcook2", *files, *settings, "--init", f"llama:{tmp_path / 'hub'}"]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "run")])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "time tokens" in " ".join(result.output.split())
    trained = checkpoint.load(tmp_path / "run/last", device="cpu")
    assert trained.config.decoder == "causal" and trained.config.llama is not None
    state = trained.model.state_dict()
    same = [
        torch.equal(state[f"causal.llama.{name}"], weight)
        for name, weight in ours.state_dict().items()
    ]
    assert all(same) if lora else not all(same)
    changed = [weight.any() for name, weight in state.items() if name.endswith("lora_B")]
    assert bool(changed) == bool(lora) and all(changed)
    given = {name: files[files.index(name) + 1] for name in ("--features", "--speech")}
    command = ["evaluate", str(tmp_path / "run/last"), "--annotations"]
    command += [files[files.index("--annotations") + 1], "--beams", "2"]
    command += [part for pair_ in given.items() for part in pair_]
    command += files[files.index("--datastore") :] if lora else []
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "CIDEr" in result.output
