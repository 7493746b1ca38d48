"""`starc` on a machine where some modules are not installed.

python tests/support/core_only.py MODULE,MODULE ARGUMENT…
python tests/support/core_only.py MODULE,MODULE --import NAME…
python tests/support/core_only.py MODULE,MODULE PROGRAM.py
"""

import importlib
import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder


class WithoutExtras(PathFinder):
    """Finds what is installed, the absent modules left out."""

    absent: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None) -> ModuleSpec | None:  # type: ignore[no-untyped-def,override]
        if fullname.partition(".")[0] in cls.absent:
            return None
        return super().find_spec(fullname, path, target)


if __name__ == "__main__":
    absent, *arguments = sys.argv[1:]
    WithoutExtras.absent = frozenset(absent.split(","))
    sys.meta_path = [WithoutExtras if it is PathFinder else it for it in sys.meta_path]
    if arguments[0] == "--import":
        for name in arguments[1:]:
            importlib.import_module(name)
    elif arguments[0].endswith(".py"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        sys.argv = ["starc", *arguments]
        runpy.run_module("starc", run_name="__main__")
