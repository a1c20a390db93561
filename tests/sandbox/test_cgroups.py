"""Control groups: the place for one, its bound on all processes of a run, and its removal."""

import os

import pytest

from verizero import sandbox
from verizero.sandbox import cgroups, keepers, languages

HOGS = "for i in 1 2 3 4; do (head -c 70M /dev/zero; sleep 3) | tail -c 70M > /dev/null & done; wait; echo 8"


def machine(folder, mounts, cgroup):
    """Make a /proc/self with these mounts and this control group."""
    (folder / "mounts").write_text(mounts.replace("ROOT", str(folder)))
    (folder / "cgroup").write_text(cgroup)
    return folder


def test_version_1_has_a_folder_for_each_limit(tmp_path):
    mounts = (
        "cgroup ROOT/m cgroup rw,relatime,memory 0 0\ncgroup ROOT/p cgroup rw,pids 0 0\ncgroup2 ROOT/u cgroup2 rw 0 0\n"
    )
    proc = machine(tmp_path, mounts, "8:pids:/\n4:cpu,memory:/box/7\n1:name=systemd:/\n0::/\n")
    for folder in ("m/box/7", "p", "u"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "u/cgroup.subtree_control").write_text("hugetlb\n")
    assert cgroups.parents(proc) == {"memory": tmp_path / "m/box/7", "pids": tmp_path / "p"}
    (tmp_path / "m/box/7").rmdir()
    assert cgroups.parents(proc)["memory"] == tmp_path / "m", "a container may not see its own path"


def test_version_2_is_used_where_both_limits_are_handed_down(tmp_path):
    proc = machine(tmp_path, "cgroup2 ROOT/u cgroup2 rw,nosuid 0 0\n", "0::/user/app\n")
    (tmp_path / "u/user/app").mkdir(parents=True)
    (tmp_path / "u/user/cgroup.subtree_control").write_text("memory pids\n")
    (tmp_path / "u/user/app/cgroup.subtree_control").write_text("\n")
    assert set(cgroups.parents(proc).values()) == {tmp_path / "u/user"}, "a group with processes hands nothing down"
    (tmp_path / "u/user/app/cgroup.subtree_control").write_text("cpu memory pids\n")
    assert set(cgroups.parents(proc).values()) == {tmp_path / "u/user/app"}
    for folder in ("u/user", "u/user/app"):
        (tmp_path / folder / "cgroup.subtree_control").write_text("cpu pids\n")
    with pytest.raises(OSError, match="memory and pids"):
        cgroups.parents(proc)


@pytest.mark.run
def test_where_there_is_none_the_walls_say_so(monkeypatch):
    def refuse():
        raise OSError(13, "/sys/fs/cgroup is not writable")

    monkeypatch.setattr(cgroups, "parents", refuse)
    with sandbox.Pool(workers=1) as pool:
        assert sandbox.run("print(8)", [{"input": "", "output": "8"}], pool=pool).passed
        assert pool.isolation.stands["cgroup"] is False
        assert pool.isolation.notes["cgroup"] == "/sys/fs/cgroup is not writable"


@pytest.fixture
def places():
    """Return the folders in which groups may be made on this machine."""
    try:
        return cgroups.parents()
    except OSError as exc:
        pytest.skip(f"no control groups here: {exc}")


@pytest.mark.run
def test_processes_of_a_run_share_one_bound_and_the_group_goes_with_its_worker(places):
    before = {p for place in places.values() for p in place.glob(f"verizero-sandbox-{os.getpid()}-*")}
    with sandbox.Pool(workers=1, tools=languages.TOOLS) as pool:
        assert pool.isolation.stands["cgroup"]
        made = {p for place in places.values() for p in place.glob(f"verizero-sandbox-{os.getpid()}-*")} - before
        assert made
        limits = sandbox.Limits(memory_mib=128, wall_s=120)
        result = sandbox.run(HOGS, [{"input": "", "output": "8"}], language="bash", limits=limits, pool=pool)
        assert result.status == "memory_limit", result
        again = sandbox.run("echo 8", [{"input": "", "output": "8"}], language="bash", limits=limits, pool=pool)
        assert again.passed, again
    assert not [p for p in made if p.exists()]


@pytest.mark.run
def test_a_session_past_the_memory_of_all_has_a_status_and_is_not_lost(places, monkeypatch):
    monkeypatch.setitem(keepers.BOUNDS, "memory_mib", 128)
    with sandbox.Pool(workers=1, tools=languages.TOOLS) as pool, sandbox.Session(pool) as session:
        assert session.shell("x=$(head -c 200M /dev/zero | tr '\\0' a); echo ${#x}").status == "memory_limit"
        assert session.shell("echo 8").stdout == "8\n"


@pytest.mark.run
def test_one_process_past_its_memory_is_ended_by_the_kernel(places):
    program = "a = []\nwhile True:\n  try:\n    while True: a.append(bytearray(1 << 20))\n  except MemoryError: pass"
    with sandbox.Pool(workers=1) as pool:
        limits = sandbox.Limits(memory_mib=100, cpu_s=30, wall_s=120)
        result = sandbox.run(program, [{"input": "", "output": ""}], limits=limits, pool=pool)
        assert (result.status, "100 MiB" in result.error) == ("memory_limit", True)
        assert sandbox.run("print(8)", [{"input": "", "output": "8"}], limits=limits, pool=pool).passed


def test_groups_of_dead_callers_are_swept(tmp_path):
    for name in ("verizero-sandbox-999999999-0-a", f"verizero-sandbox-{os.getpid()}-0-a", "other"):
        (tmp_path / name).mkdir()
    cgroups.sweep({"memory": tmp_path, "pids": tmp_path})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", f"verizero-sandbox-{os.getpid()}-0-a"]
