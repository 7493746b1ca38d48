"""What `pip install starc` brings is enough to caption; everything else is in a named extra."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from starc.cli.doctor import EXTRAS
from support.clips import write_clip

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
DEPENDENCIES = PYPROJECT["project"]["dependencies"]
OPTIONAL = PYPROJECT["project"]["optional-dependencies"]
PACKAGE = ROOT / "src/starc"


def package(requirement: str) -> str:
    """The name in a requirement, as pip compares names."""
    return re.split(r"[ <>=!~;\[(]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def core_only(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A program that has what the core depends on, and nothing that only an extra names."""
    named = {package(line) for lines in OPTIONAL.values() for line in lines}
    named |= {"sentence-transformers", "scikit-learn", "scipy"}
    named -= {"starc"} | {package(line) for line in DEPENDENCIES}
    absent = {
        module
        for module, owners in packages_distributions().items()
        if named & {package(owner) for owner in owners}
    }
    assert {"transformers", "accelerate", "scipy", "sklearn", "fastapi"} <= absent
    return subprocess.run(
        [sys.executable, ROOT / "tests/support/core_only.py", ",".join(absent), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_module_but_the_viewer_imports_without_extras() -> None:
    names = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if "viewer" not in path.parts and path.stem != "__main__"
    ]
    assert len(names) > 40
    done = core_only("--import", *sorted(names))
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_core_captions(tmp_path: Path) -> None:
    video = write_clip(tmp_path / "clip.mp4", audio="aac")
    target = tmp_path / "clip.json"  # a test picture is out of domain, hence --force
    done = core_only("caption", video, "--force", "--format", "json", "--out", target)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "moonshine" in target.read_text("utf-8")


def test_the_demonstration_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = core_only(ROOT / "examples/demo.py")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Against the reference: F1" in done.stdout
    found = json.loads((tmp_path / "out/scrambled_eggs.json").read_text())
    assert len(found["events"]) >= 3
    assert any("egg" in event["caption"] for event in found["events"])
    assert (tmp_path / "out/scrambled_eggs.vtt").read_text().startswith("WEBVTT")
    page = tmp_path / "out/scrambled_eggs.html"
    assert "<svg" in page.read_text()
    said = [line.strip() for line in done.stdout.splitlines()]
    assert page.as_uri() in said and said[-1] == ".venv/bin/starc view out/scrambled_eggs.json"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_installs_the_test_tools_for_tests_only() -> None:
    def installed(target: str) -> list[str]:
        command = ["make", "-n", "-B", target, "READY=absent"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return re.findall(r"-e (\S+)", done.stdout)

    assert installed("demo") == ["packages/starc-eval", "'.[viewer]'"]
    assert installed("test") == ["packages/starc-eval", "'.[dev]'"]


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("clip", ["features", "clip.mp4", "--out", "a.pth"]),
        ("text", ["datastore", "build", "captions.txt", "--out", "store"]),
        ("viewer", ["view", "clip.mp4"]),
    ],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, extra: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "clip.mp4")
    (tmp_path / "captions.txt").write_text("crack the eggs\n")
    done = core_only(*arguments)
    assert done.returncode == 1, done.stderr[-2000:]
    (line,) = done.stderr.splitlines()
    assert f"pip install 'starc[{extra}]'" in line


def test_any_locale_will_do() -> None:
    plain = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "starc", "doctor"], env=os.environ | plain, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "✓" in done.stdout.decode("utf-8")


def test_the_extras_that_messages_name_exist() -> None:
    named = set(EXTRAS)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "MissingExtra",
                "_require",
            ):
                named |= {arg.value for arg in node.args[-1:] if isinstance(arg, ast.Constant)}
    named = {name for name in named if "==" not in name}
    assert named == OPTIONAL.keys() - {"all", "dev"}
    everything = {*re.findall(r"\w+", OPTIONAL["all"][0])} - {"starc"}
    assert everything == named


@pytest.mark.parametrize("folder", [PACKAGE, ROOT / "packages/starc-eval/src/starc_eval"])
def test_the_wheel_takes_every_file_of_the_package(folder: Path) -> None:
    project = tomllib.loads((folder.parents[1] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"][folder.name]
    built = {".py", ".c", ".so", ".pyc"}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in built:
            name = path.relative_to(folder).as_posix()
            depth = name.count("/")
            assert any(
                fnmatch.fnmatch(name, pattern) and pattern.count("/") == depth
                for pattern in patterns
            ), f"{name}: not in the package-data of pyproject.toml"
