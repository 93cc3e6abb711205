import os

import pytest

from rankwise import Resources, _machine


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("max", "5", 2048 * 1024), ("3000", "1000", 2007), ("1000", "3000", 0), ("?", "", 2097152)],
)
def test_free_memory_is_that_of_the_machine_or_of_the_container(
    tmp_path, monkeypatch, limit, used, expected
):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 7\nactive_file 9\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:    2048 kB\n")
    monkeypatch.setattr(_machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(_machine, "_MEMINFO", tmp_path / "meminfo")
    assert _machine.find_free_memory() == expected


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("1600000 100000", 8)],
)
def test_a_containers_quota_counts(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(_machine, "_CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert _machine.count_cores() == cores


def test_no_more_layers_are_measured_at_once_than_there_are_cores(monkeypatch):
    monkeypatch.setattr("rankwise.probes.workers.count_cores", lambda: 3)
    monkeypatch.setattr("torch.get_num_threads", lambda: 64)
    assert Resources().count_jobs() == 3
    assert Resources(jobs=5).count_jobs() == 5
