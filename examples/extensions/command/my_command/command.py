"""A command: prints the round in which the mean return of a job was best."""

from marless.app.cli.options import CoordinatorOptions, Output, OutputOption, connected
from marless.app.cli.output import data, show_object
from marless.app.cli.recorded import RecordedArgument, find
from marless.core.errors import NotFoundError


@connected
def command(at: CoordinatorOptions, job: RecordedArgument, output: OutputOption = Output.table) -> None:
    """Print the round in which the mean return of a job was best."""
    found = find(job, at)
    returns = {record.round: record.returns.mean for record in found.records if record.returns}
    if not returns:
        raise NotFoundError(f"job {found.job} has no episode that ended yet; wait for its next round")
    number = max(returns, key=returns.__getitem__)
    if output is Output.table:
        data(f"{number}")
    else:
        show_object({"job": found.job, "round": number, "return": returns[number]}, found.job, output)
