"""The packages of the wheel: conf/ is installed as rlsweep_conf, because many projects have a package `conf`."""

from setuptools import find_namespace_packages, find_packages, setup

setup(
    py_modules=["launch", "rlsweep"],
    packages=[
        *find_packages(include=["launcher*", "trainer_ext*", "analysis*"]),
        *find_namespace_packages(include=["hydra_plugins*"]),  # Hydra walks the namespace itself
        "rlsweep_conf",
    ],
    package_dir={"rlsweep_conf": "conf"},
    package_data={
        "rlsweep_conf": ["*.yaml", "**/*.yaml"],
        "analysis.report": ["*.j2", "*.css", "*.js"],
        "analysis.judging": ["*.html"],
        "launcher.commands": ["plain/**/*.in"],
        "trainer_ext.application": ["study/**/*.in"],
    },
)
