"""Why a SLURM or a Ray cannot be started is said in words."""

from __future__ import annotations

import pytest

from tests.cluster import rays, slurm


def test_commands_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "slurmctld, slurmd, slurmdbd, munged, mariadbd not found on PATH" in (slurm.missing_slurm() or "")
    assert "unshare, nsenter, ip not found on PATH" in (rays.missing_ray.__wrapped__() or "")


def test_without_root_there_is_no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "PROGRAMS", ())
    monkeypatch.setattr(slurm.os, "geteuid", lambda: 1000)
    assert slurm.missing_slurm() == "starting a SLURM needs root"


def test_a_kernel_that_makes_no_namespace_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rays, "_namespace", lambda: ["sh", "-c", "echo unshare failed: not permitted >&2; exit 1"])
    monkeypatch.setattr(rays.shutil, "which", lambda _: "/usr/bin/it")
    assert "cannot be made here: unshare failed: not permitted" in (rays.missing_ray.__wrapped__() or "")
