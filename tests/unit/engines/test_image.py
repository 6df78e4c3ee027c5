from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.engines.oci import image, places, toolbox
from stockade.host.data import data_directory, native_program
from stockade.terms.fault import Code, Failure

PROGRAMS = tuple(native_program(name) for name in ("guest", "hold.so", "regular.so"))


def recipe() -> image.Recipe:
    return image.parse_recipe((data_directory("images") / "host.json").read_bytes())


def test_host_image_has_what_the_recipe_says(tmp_path: Path) -> None:
    made = image.build(recipe(), tmp_path)
    assert (made.root / "etc/passwd").read_text().startswith("root:x:0:0:")
    assert os.readlink(made.root / "bin") == "usr/bin"
    assert stat.S_IMODE((made.root / "tmp").stat().st_mode) == 0o1777
    assert list((made.root / "usr").iterdir()) == []
    assert (made.root / "run/stockade").is_dir()


def test_building_again_replaces_it(tmp_path: Path) -> None:
    image.build(recipe(), tmp_path)
    (tmp_path / "host/etc/passwd").write_text("tampered")
    made = image.build(recipe(), tmp_path)
    assert "tampered" not in (made.root / "etc/passwd").read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["host"]


def test_what_a_killed_process_left_half_made_is_removed(tmp_path: Path) -> None:
    part = tmp_path / ".host.part"
    (part / "etc").mkdir(parents=True)
    (part / "etc/passwd").write_text("half")
    made = image.build(recipe(), tmp_path)
    assert "half" not in (made.root / "etc/passwd").read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["host"]


def test_files_of_the_host_that_the_recipe_names_are_there(tmp_path: Path) -> None:
    made = image.build(recipe(), tmp_path)
    here = [copy.path for copy in recipe().copies if os.path.isfile(copy.path)]
    assert here
    for path in here:
        assert (made.root / path[1:]).read_bytes() == Path(path).read_bytes()


@pytest.fixture
def tight_umask() -> Iterator[None]:
    """The daemon's own must not matter: whoever runs inside is none that it names."""
    old = os.umask(0o077)
    yield
    os.umask(old)


@pytest.mark.usefixtures("tight_umask")
def test_everybody_inside_can_search_and_read_it(tmp_path: Path) -> None:
    named = {item.path: int(item.mode, 8) for item in recipe().directories}
    root = image.build(recipe(), tmp_path).root
    for path in (root, *root.rglob("*")):
        inside = f"/{path.relative_to(root)}"
        if not path.is_symlink():
            plain = 0o755 if path.is_dir() else 0o644
            assert stat.S_IMODE(path.stat().st_mode) == named.get(inside, plain), inside
    tools = toolbox.build(tmp_path / "toolbox", *PROGRAMS)
    for directory in (tools, tools / "rg"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    places.make_layers(str(tmp_path / "layers"), ["0"], os.getuid())
    assert stat.S_IMODE((tmp_path / "layers/0/upper").stat().st_mode) == 0o755


@pytest.mark.parametrize("path", ["/", "/usr", "/usr/bin", "/opt", "/etc/passwd", "/etc/ssl/certs"])
def test_what_is_there_can_be_a_mount_of_its_own(tmp_path: Path, path: str) -> None:
    assert image.build(recipe(), tmp_path).why_not(path) is None


def test_a_link_and_what_is_absent_can_not(tmp_path: Path) -> None:
    made = image.build(recipe(), tmp_path)
    assert made.why_not("/bin") == made.why_not("/bin/sh") == "a symlink"
    # Nothing but the mounts is looked up on the host, which has a boot directory.
    for path in ("/opt/absent", "/usrx", "/boot"):
        assert made.why_not(path) == "No such file or directory"


def test_nothing_secret_is_copied() -> None:
    mounts, copies = recipe().mounts, recipe().copies
    paths = {item.path for item in mounts} | {item.path for item in copies}
    assert not {p for p in paths if p in ("/etc", "/etc/ssl", "/root", "/home", "/etc/shadow")}


@pytest.mark.parametrize("text", [b"{}", b"not json", b'{"name": "../x"}'])
def test_bad_recipe_is_refused(text: bytes) -> None:
    with pytest.raises(Failure) as caught:
        image.parse_recipe(text)
    assert caught.value.fault.code is Code.ENGINE_UNAVAILABLE


def test_toolbox_runs_ripgrep_through_its_own_loader(tmp_path: Path) -> None:
    made = toolbox.build(tmp_path / "toolbox", *PROGRAMS)
    assert stat.S_IMODE((made / "guest").stat().st_mode) == 0o711
    rg = str(made / "rg")
    loader = [
        f"{rg}/ld.so",
        "--library-path",
        rg,
        "--preload",
        f"{rg}/regular.so",
        f"{rg}/rg",
        "--version",
    ]
    said = subprocess.run(loader, capture_output=True, text=True, env={}, check=True)
    assert said.stdout.startswith("ripgrep ")


def test_toolbox_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(Failure, match="apt-get install ripgrep"):
        toolbox.build(tmp_path, *PROGRAMS)
