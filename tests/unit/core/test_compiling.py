"""Libraries for images: packed beside their source, used without a compiler, and only where they run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from marless.core import compiling
from marless.core.errors import SpecError

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))) or sys.platform != "linux", reason="no C compiler"
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C source in a folder of its own, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(compiling.VARIABLE, raising=False)
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "answer.c").write_text("long answer(void) { return 42; }\n")
    return folder / "answer.c"


def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


@needs_compiler
def test_a_packed_library_needs_no_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compiling.pack(source)
    assert packed.parent == source.parent
    without_a_compiler(monkeypatch)
    loaded, said = compiling.library(source)
    assert (loaded and loaded.answer(), said) == (42, "compiled")
    assert not (source.parent.parent / "cache").exists()


@needs_compiler
def test_a_packed_library_of_another_source_is_not_used(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling.pack(source)
    source.write_text("long answer(void) { return 43; }\n")
    loaded, _ = compiling.library(source)
    assert loaded and loaded.answer() == 43
    without_a_compiler(monkeypatch)
    assert compiling.library(source)[1] == "compiled"  # that of the cache, by now
    shutil.rmtree(source.parent.parent / "cache")
    assert compiling.library(source) == (None, "numpy: no C compiler (cc, gcc, clang) is on the PATH")


@needs_compiler
def test_a_packed_library_that_was_cut_short_is_not_loaded(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compiling.pack(source)
    packed.write_bytes(packed.read_bytes()[:100])
    without_a_compiler(monkeypatch)
    assert compiling.library(source)[0] is None


@needs_compiler
def test_a_packed_library_is_not_loaded_on_a_cpu_that_lacks_its_instructions(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling.pack(source)
    without_a_compiler(monkeypatch)
    monkeypatch.setattr(compiling, "_PORTABLE", {compiling.platform.machine(): (compiling._portable()[0], ("avx99",))})
    assert compiling.library(source)[0] is None


@needs_compiler
def test_the_program_of_images(source: Path) -> None:
    (source.parent / "__init__.py").write_text("")
    command = [sys.executable, "-m", "marless.core.compiling"]
    where = os.environ | {"PYTHONPATH": str(source.parent.parent)}
    done = subprocess.run([*command, "package:answer.c"], env=where, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == source.parent
    for name in ("packag:answer.c", "packag.e:answer.c", "package"):
        wrong = subprocess.run([*command, name], env=where, capture_output=True, text=True, check=False)
        assert wrong.returncode == 1
        assert wrong.stderr.startswith(f"{name}: give a package and a file in it")


def test_a_machine_that_is_unknown(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.platform, "machine", lambda: "riscv128")
    with pytest.raises(SpecError, match=r"answer\.c: cannot be compiled for images: unknown kind of machine: riscv128"):
        compiling.pack(source)
