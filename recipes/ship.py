"""Make the model that comes with the package out of trained ones.

    python recipes/ship.py PREPARED OUT MODEL [MODEL …]

Several models are runs from the same start with different seeds: the mean of their weights says
more than any of them. Matrices go to 8 bits; the datastore becomes our own cooking steps,
embedded by MiniLM and centred like the training captions, of which nothing is shipped. `PREPARED`
is what prepare_youcook2.py wrote.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from starc.model import checkpoint
from starc.model.joint_space import JointSpace
from starc.retrieval.datastore import CaptionStore


def main() -> None:
    """Write the model folder."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("prepared", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    options = arguments.parse_args()
    first, *others = [checkpoint.load(folder, device="cpu") for folder in options.models]
    first.model.load_state_dict(mean([one.model.state_dict() for one in (first, *others)]))
    assert first.tokenizer is not None
    joint = JointSpace.load(options.prepared / "joint.safetensors", first.tokenizer)
    ours = CaptionStore.load(options.prepared / "cooking")
    checkpoint.save(options.out, first.model, tokenizer=first.tokenizer, joint=joint, bits=8)
    ours.save(options.out / checkpoint.DATASTORE, half=True)
    total = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {total / 1e6:.1f} MB")


def mean(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of the weights of models of the same kind."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(value.dtype)
        for name, value in states[0].items()
    }


if __name__ == "__main__":
    main()
