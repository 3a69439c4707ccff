"""What `make release` refuses to publish, and how it signs."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.release.built import contents, differences, foreign_names, unknown_files
from tests.release.signed import lacking, sign


def git(place: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=place, check=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository whose version 1.2.0 has a section in its changelog; git knows no settings but its own."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 1.2.0\n\n- New.\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def test_a_tagged_commit_lacks_nothing(checkout):
    git(checkout, "tag", "v1.2.0")
    assert lacking(checkout, "1.2.0") == []


@pytest.mark.parametrize("more", ["- More.\n", "### Fixed\n\n- More.\n"])
def test_lines_that_are_still_unreleased_are_refused(checkout, more):
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", f"## Unreleased\n\n{more}"))
    git(checkout, "commit", "-qam", "more")
    git(checkout, "tag", "v1.2.0")
    assert lacking(checkout, "1.2.0") == ["an end of the section Unreleased of CHANGELOG.md"]


@pytest.mark.parametrize("section", ["## 1.2.0\n\n", "## 1.2.0.1\n\n- New.\n\n", ""])
def test_a_release_of_which_nothing_is_said_is_refused(checkout, section):
    (checkout / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n{section}## 1.1.0\n\n- Old.\n")
    git(checkout, "commit", "-qam", "none")
    git(checkout, "tag", "v1.2.0")
    assert lacking(checkout, "1.2.0") == ["a section of CHANGELOG.md"]


def test_the_tag_of_another_version_is_refused(checkout):
    git(checkout, "tag", "v1.2.1")
    assert lacking(checkout, "1.2.0") == ["a tag v1.2.0 at this commit, which has v1.2.1"]


def test_a_tag_of_an_earlier_commit_is_refused(checkout):
    git(checkout, "tag", "v1.2.0")
    git(checkout, "commit", "-qm", "more", "--allow-empty")
    assert lacking(checkout, "1.2.0") == ["a tag v1.2.0 at this commit"]


def test_a_development_version_and_a_changed_checkout_are_refused(checkout):
    (checkout / "more").write_text("")
    assert lacking(checkout, "1.2.0.dev0") == [
        "a version in pyproject.toml that is no pre-release",
        "a section of CHANGELOG.md",
        "a tag v1.2.0.dev0 at this commit",
        "a checkout without changes",
    ]


def test_only_marless_and_its_plugins_may_stand_in_the_root_of_a_wheel():
    ours = ["marless/services/api.py", "marless_ray/host.py", "marless-0.1.0.dev0.dist-info/RECORD"]
    assert foreign_names(ours) == []
    found = [*ours, "services/api.py", "examples/spread.yaml", "marless.py", "services/more.py"]
    assert foreign_names(found) == ["examples", "marless.py", "services"]


def test_files_that_git_does_not_know_are_refused():
    names = ["marless/jobs/spec.py", "marless/jobs/.spec.py.swp", "marless-0.1.0.dist-info/METADATA"]
    assert unknown_files(names, {"marless/jobs/spec.py"}) == ["marless/jobs/.spec.py.swp"]


def test_wheels_are_compared_file_by_file(tmp_path):
    for name, files in {"one": {"a": "1", "b": "2", "c": "3"}, "other": {"a": "1", "b": "4", "d": "5"}}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
    assert differences(contents(tmp_path / "one"), contents(tmp_path / "other")) == ["b", "c", "d"]


def test_without_a_key_nothing_is_signed(checkout):
    sums = checkout / "SHA256SUMS"
    sums.write_text("0  a\n")
    assert sign(sums) is None
    assert sorted(each.name for each in checkout.iterdir()) == [".git", "CHANGELOG.md", "SHA256SUMS"]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
def test_the_documented_command_verifies_a_signature_and_refuses_changed_sums(checkout, tmp_path_factory):
    key = tmp_path_factory.mktemp("key") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key], check=True)
    git(checkout, "config", "gpg.format", "ssh")
    git(checkout, "config", "user.signingkey", str(key))
    sums = checkout / "SHA256SUMS"
    sums.write_text("0  a\n")
    signature = sign(sums)
    assert signature == checkout / "SHA256SUMS.sig"
    (checkout / "allowed_signers").write_text(f"release {key.with_suffix('.pub').read_text()}")
    verify = "ssh-keygen -Y verify -f allowed_signers -I release -n file -s SHA256SUMS.sig"
    assert verify in " ".join((Path(__file__).parents[3] / "docs" / "security.md").read_text().split())

    def verified() -> bool:
        return subprocess.run(verify.split(), cwd=checkout, input=sums.read_bytes(), check=False).returncode == 0

    assert verified()
    sums.write_text("1  a\n")
    assert not verified()


@pytest.mark.skipif(not shutil.which("gpg"), reason="no gpg")
def test_a_key_of_openpgp_signs_with_gpg(checkout, tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("g")
    home.chmod(0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    made = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "a@b", "ed25519", "sign", "never"]
    subprocess.run(made, check=True)
    git(checkout, "config", "user.signingkey", "a@b")
    sums = checkout / "SHA256SUMS"
    sums.write_text("0  a\n")
    signature = sign(sums)
    try:
        assert signature == checkout / "SHA256SUMS.asc"
        subprocess.run(["gpg", "--verify", str(signature), str(sums)], check=True)
        sums.write_text("1  a\n")
        assert subprocess.run(["gpg", "--verify", str(signature), str(sums)], check=False).returncode == 1
    finally:
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=True)
