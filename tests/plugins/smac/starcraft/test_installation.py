"""What is missing of the game is said in one sentence, with the place where it belongs."""

import pytest

from marless.core.errors import SpecError
from marless_smac.starcraft import installation


def test_the_newest_version_is_used_unless_another_is_asked_for(sc2):
    root = sc2("8m")
    assert installation.find().program == root / "Versions" / "Base75689" / "SC2_x64"
    assert installation.find(69232).build == 69232


def test_maps_are_read(sc2):
    sc2("8m")
    assert installation.find().map_data("8m") == b"the map 8m"


def test_without_the_variable():
    with pytest.raises(SpecError, match="set SC2PATH to its folder"):
        installation.find(environment={})


def test_an_empty_folder(tmp_path):
    with pytest.raises(SpecError, match=r"no StarCraft II is there; .*/Versions has no Base\*/SC2_x64"):
        installation.find(environment={"SC2PATH": str(tmp_path)})


def test_a_version_that_is_not_installed(sc2):
    sc2("8m")
    with pytest.raises(SpecError, match="build 1 is not installed; installed: 69232, 75689"):
        installation.find(1)


def test_a_program_that_is_not_executable(sc2):
    sc2("8m")
    installation.find().program.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: False)  # root may execute what it likes
        with pytest.raises(SpecError, match="`chmod \\+x` it"):
            installation.find()


def test_a_missing_map(sc2):
    root = sc2("8m")
    with pytest.raises(SpecError, match=rf"no map 3m: {root}/Maps/SMAC_Maps/3m.SC2Map is missing; unpack"):
        installation.find().map_data("3m")
