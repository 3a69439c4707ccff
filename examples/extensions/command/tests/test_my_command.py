from marless.app.cli.main import app
from typer.testing import CliRunner


def test_it_is_a_verb() -> None:
    assert "mean return of a job was best" in CliRunner().invoke(app, ["my_command", "--help"]).stdout
