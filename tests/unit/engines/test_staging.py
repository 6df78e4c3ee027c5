from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.decide.compile import compile_plan
from stockade.engines.oci import image, spec, staging
from stockade.host.data import data_directory
from stockade.host.policy_files import load_policy
from stockade.terms.grant import Grant, Profile
from stockade.terms.lease import UID_RANGE
from stockade.terms.plan import Kind, SandboxPlan

BASE = 1_073_741_824
POLICY = load_policy()
RECIPE = image.parse_recipe((data_directory("images") / "host.json").read_bytes())
IMAGE = image.SystemImage(RECIPE, Path("/state/images/host"))
PLACE = staging.Place(
    uid_base=BASE,
    tree_path="/holder/root",
    layers="/holder/disk/sys/sb",
    toolbox=Path("/state/toolbox"),
    stage="/mnt",
    cover=(("/sys/fs/cgroup", "unified"),),
    groups=(Path("/sys/fs/cgroup/unified/g"),),
    netns_fd=9,
)


def plan(
    kind: Kind = Kind.COMMAND,
    profile: Profile = Profile.AGENT,
    deny: tuple[str, ...] = ("/workspace/.git/hooks",),
    **scope: tuple[str, ...],
) -> SandboxPlan:
    grant: Grant = POLICY.grant("agent")
    grant = grant.model_copy(
        update={
            "scope": grant.scope.model_copy(update=scope),
            "deny": deny,
            "system": grant.system.model_copy(update={"profile": profile}),
        }
    )
    return compile_plan(grant, kind, POLICY, image="host", image_env={}, lease_env=())


def records(script: bytes) -> list[list[str]]:
    """The script as the launcher reads it."""
    fields = script.decode().split("\0")
    assert fields.pop() == ""
    found, index = [], 0
    while index < len(fields):
        count = int(fields[index])
        found.append(fields[index + 1 : index + 2 + count])
        index += count + 2
    return found


def staged(made: SandboxPlan) -> list[list[str]]:
    return records(staging.script(made, PLACE, IMAGE, ["3", "4", "5", "/usr/bin/crun", "crun"]))


@pytest.mark.parametrize("owner", [0, 1000])
def test_id_map_covers_the_range_once_and_the_owner_is_the_base(owner: int) -> None:
    lines = spec.id_map(BASE, owner)
    inside = [i for first, _, length in lines for i in range(first, first + length)]
    hosts = [h for _, host, length in lines for h in range(host, host + length)]
    assert sorted(inside) == list(range(UID_RANGE))
    assert sorted(hosts) == list(range(BASE, BASE + UID_RANGE))
    assert spec.map_id(BASE, owner, owner) == BASE


@given(st.sampled_from([0, 1, 1000]), st.integers(0, UID_RANGE - 1))
def test_map_id_agrees_with_the_map(owner: int, inside: int) -> None:
    table = {
        first + offset: host + offset
        for first, host, length in spec.id_map(BASE, owner)
        for offset in range(length)
    }
    assert spec.map_id(BASE, owner, inside) == table[inside]


def test_id_outside_of_the_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="outside"):
        spec.map_id(BASE, 0, UID_RANGE)


def test_order_is_enter_clone_leave_attach_become() -> None:
    names = [record[0] for record in staged(plan())]
    assert names[0] == "enter"
    assert names[-1] == "become"
    leave = names.index("private")
    trees = [i for i, r in enumerate(staged(plan())) if r[0] == "clone" and r[2] == "/holder/root"]
    assert trees
    assert max(trees) < leave
    assert "attach" not in names[:leave]


def test_denied_path_is_read_only_below_pinned_parents() -> None:
    mounts = {m.path: m.writable for m in staging.tree_mounts(plan())}
    assert mounts["/workspace"]
    assert mounts["/workspace/.git"]
    assert not mounts["/workspace/.git/hooks"]
    paths = [m.path for m in staging.tree_mounts(plan())]
    assert paths == sorted(paths)


def test_parents_are_pinned_also_around_the_tree_that_holds_the_denied_path() -> None:
    made = plan(execute=("/usr", "/workspace/a/b/c"), deny=("/workspace/a/b/c/d/e",))
    mounts = {m.path: (m.writable, m.executable) for m in staging.tree_mounts(made)}
    assert mounts == {
        "/tmp": (True, False),
        "/workspace": (True, False),
        "/workspace/a": (True, False),
        "/workspace/a/b": (True, False),
        "/workspace/a/b/c": (True, True),
        "/workspace/a/b/c/d": (True, True),
        "/workspace/a/b/c/d/e": (False, True),
    }


def test_a_denied_path_that_is_a_tree_itself_is_pinned_where_it_is() -> None:
    made = plan(execute=("/usr", "/workspace/a/b"), deny=("/workspace/a/b",))
    mounts = {m.path: (m.writable, m.executable) for m in staging.tree_mounts(made)}
    assert mounts == {
        "/tmp": (True, False),
        "/workspace": (True, False),
        "/workspace/a": (True, False),
        "/workspace/a/b": (False, True),
    }


def test_the_parents_of_a_tree_in_a_writable_one_are_pinned_but_none_in_what_is_denied() -> None:
    run = ("/workspace/a/b/c", "/workspace/d/e/f/g")
    made = plan(execute=("/usr", *run), deny=("/workspace/d/e",))
    mounts = {m.path: (m.writable, m.executable) for m in staging.tree_mounts(made)}
    assert mounts == {
        "/tmp": (True, False),
        "/workspace": (True, False),
        "/workspace/a": (True, False),
        "/workspace/a/b": (True, False),
        "/workspace/a/b/c": (True, True),
        "/workspace/d": (True, False),
        "/workspace/d/e": (False, False),
        "/workspace/d/e/f/g": (False, True),
    }
    read_only = plan(execute=("/usr", *run), write=())
    assert {m.path for m in staging.tree_mounts(read_only)} == {"/tmp", "/workspace", *run}


def test_nothing_is_pinned_in_a_tree_that_can_not_be_written() -> None:
    made = plan(read=("/workspace",), write=())
    assert [m.path for m in staging.tree_mounts(made)] == ["/workspace"]


def test_partial_grants_leave_a_read_only_directory_with_their_mount_points() -> None:
    made = staged(plan(read=("/workspace/a/b", "/workspace/c", "/tmp"), write=("/workspace/c",)))
    made_directories = [r[1] for r in made if r[0] == "mkdir" and "/workspace" in r[1]]
    assert made_directories == [
        "/mnt/rootfs/workspace/a",
        "/mnt/rootfs/workspace/a/b",
        "/mnt/rootfs/workspace/c",
    ]
    assert ["readonly", "/mnt/rootfs/workspace"] in made


def overlays(made: SandboxPlan) -> list[dict[str, str]]:
    found = [r[3:] for r in staged(made) if r[0] == "filesystem" and r[2] == "overlay"]
    return [{"letters": r[0], **dict(zip(r[1::2], r[2::2], strict=True))} for r in found]


def test_strict_has_no_layers_and_agent_one_per_system_mount() -> None:
    assert staging.layer_names(plan(profile=Profile.STRICT), IMAGE) == []
    assert staging.layer_names(plan(), IMAGE) == ["0", "1"]
    writable = [o for o in overlays(plan()) if "upperdir" in o]
    assert [o["upperdir"] for o in writable] == ["/mnt/upper-0/upper", "/mnt/upper-1/upper"]
    assert all("r" not in o["letters"] and "volatile" in o for o in writable)
    strict = overlays(plan(profile=Profile.STRICT))
    assert all("r" in o["letters"] and "upperdir" not in o for o in strict)


@pytest.mark.parametrize("kind", list(Kind))
def test_no_file_of_the_host_is_mounted_but_through_an_overlay(kind: Kind) -> None:
    """And no option of these, which are shown inside, names a place of the host."""
    for profile in Profile:
        made = plan(kind, profile)
        sources = {r[1] for r in staged(made) if r[0] == "clone" and r[2] not in ("/holder/root",)}
        attached = [r for r in staged(made) if r[0] == "attach" and r[1] in sources]
        assert attached
        assert all(
            r[2:] == ["/mnt", r[3]] and r[3].startswith(("lower-", "upper-")) for r in attached
        )
        used = [value for o in overlays(made) for value in list(o.values())[1:] if value]
        assert all(part.startswith("/mnt/") for value in used for part in value.split(":"))
        mounts = 1 if kind is Kind.SEARCH else 2 + len(RECIPE.mounts)
        assert len(overlays(made)) == mounts


def test_every_system_mount_is_idmapped_and_read_only() -> None:
    system = [r for r in staged(plan()) if r[0] == "clone" and r[2] in ("/usr", str(IMAGE.root))]
    assert len(system) == 2
    assert all(set("ird") <= set(r[4]) for r in system)


def test_search_has_no_image_no_sysfs_and_nothing_writable() -> None:
    made = staged(plan(Kind.SEARCH))
    assert not [r for r in made if r[0] == "sysfs"]
    assert not [r for r in made if str(IMAGE.root) in r or "/usr" in r]
    trees = [r for r in made if r[0] == "clone" and r[2] == "/holder/root"]
    assert all("r" in r[4] and "x" in r[4] for r in trees)
    assert ["readonly", "/mnt/rootfs"] in made


def test_nul_never_reaches_the_script() -> None:
    with pytest.raises(ValueError, match="NUL"):
        staging.Script().add("mkdir", "a\0b", "0755")


@pytest.mark.parametrize("granted", [False, True])
def test_memory_in_dev_is_executable_where_that_is_granted(granted: bool) -> None:
    made = plan(execute=("/usr", "/dev/shm") if granted else ("/usr",))
    config = spec.config(
        made,
        uid_base=BASE,
        netns_path="/proc/1/fd/9",
        rootfs="/mnt/rootfs",
        guest="/g",
        persistent=False,
        seccomp={},
    )
    assert isinstance(config, dict)
    mounts = config["mounts"]
    assert isinstance(mounts, list)
    found = {str(m["destination"]): m["options"] for m in mounts if isinstance(m, dict)}
    assert sorted(found) == ["/dev", "/dev/pts", "/dev/shm", "/proc"]
    options = found["/dev/shm"]
    assert isinstance(options, list)
    assert {"nosuid", "nodev"} <= set(map(str, options))
    assert ("noexec" in options) is not granted


def test_config_has_no_sysfs_no_resources_and_bare_environment() -> None:
    config = spec.config(
        plan(),
        uid_base=BASE,
        netns_path="/proc/1/fd/9",
        rootfs="/mnt/rootfs",
        guest="/g",
        persistent=False,
        seccomp={},
    )
    assert isinstance(config, dict)
    text = repr(config)
    assert "sysfs" not in text
    assert "resources" not in text
    assert "cgroupsPath" not in text
    process = config["process"]
    assert isinstance(process, dict)
    assert process["env"] == []
    assert process["noNewPrivileges"] is True
    # A core file lands where the host says, and open files are memory of the kernel's.
    limits = process["rlimits"]
    assert isinstance(limits, list)
    assert {"type": "RLIMIT_CORE", "soft": 0, "hard": 0} in limits
    assert {"type": "RLIMIT_NOFILE", "soft": 4096, "hard": 4096} in limits
