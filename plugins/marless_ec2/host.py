"""`python -m marless_ec2.host`: the host program of an EC2 instance."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from marless.core.errors import MarlessError, SpecError
from marless.fleet.launchers.hosts.options import host_options, option_parser
from marless.fleet.launchers.hosts.program import run
from marless.rpc.process import add_option, configure_logging
from marless_ec2.metadata import ADDRESS, InstanceMetadata, Metadata

_PROGRAM = "python -m marless_ec2.host"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program with these command-line arguments (by default, those of this process) to its end."""
    configure_logging()
    parser = option_parser(_PROGRAM)
    add_option(parser, "--metadata", ADDRESS, "address of the instance metadata service")
    try:
        args = parser.parse_args(arguments)
        code = run(host_options(args), InstanceMetadata(Metadata(args.metadata)))
    except MarlessError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)  # noqa: T201  # the final error message, for people
        code = 2 if isinstance(error, SpecError) else 1
    sys.exit(code)


if __name__ == "__main__":
    main()
