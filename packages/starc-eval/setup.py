"""Only the optional C extension lives here; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "starc_eval._meteor",
            sources=["src/starc_eval/_meteor.c"],
            extra_compile_args=["-O2"],
            optional=True,
        )
    ]
)
