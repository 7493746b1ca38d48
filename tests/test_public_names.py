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
