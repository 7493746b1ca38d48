"""What `import starc` offers, and that it is light."""

import subprocess
import sys

import starc


def test_public_names() -> None:
    wanted = ["Captioned", "Captioner", "Event", "Options", "Segment", "Sentence", "StarcError"]
    assert sorted(starc.__all__) == [*wanted, "load", "score"]
    for name in starc.__all__:
        assert getattr(starc, name).__module__.startswith(("starc.", "starc_eval."))
    assert starc.__version__


def test_importing_starc_brings_no_torch() -> None:
    code = "import starc, sys; assert not {'torch', 'transformers', 'av'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    assert sorted(name for name in dir(starc) if not name.startswith("_")) == sorted(starc.__all__)
    assert "load" in dir(starc) and "ctypes" not in dir(starc)
