"""Measures how long deploy/terraform takes to be applied and destroyed, against moto, which answers at once.

`python -m bench.terraform --json terraform.json`; it needs what `make test-cloud` needs. What AWS itself takes comes on
top. The boot of the control plane, for which an apply waits, is left out: nothing boots here.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from bench import harness
from bench.harness import Row, spread
from tests.cloud import terraform
from tests.cloud.conftest import REGION

COMMANDS = ("apply", "destroy")


def deployed_s(endpoint: str) -> dict[str, float]:
    """Seconds that each command takes in an empty account."""
    with tempfile.TemporaryDirectory() as place, terraform.account(REGION):
        wheel = Path(place, "marless-0.1.0-py3-none-any.whl")
        wheel.touch()
        variables = terraform.variables(wheel, REGION) | {"wait_for_boot": False}
        made = terraform.Terraform(Path(place, "made"), endpoint, variables)
        made.furnish()
        for command in COMMANDS:
            made.run(command, "-auto-approve", "-parallelism=30")
        return {command: made.took_s[command] for command in COMMANDS}


def main() -> None:
    """Deploy and destroy a few times."""
    from moto.server import ThreadedMotoServer

    args = harness.parser(__doc__, runs=3).parse_args()
    about = harness.machine()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        times = [deployed_s(f"http://{host}:{port}") for _ in range(args.runs)]
    finally:
        server.stop()
    rows: list[Row] = [{"what": each, "s": spread([took[each] for took in times]).cell(1)} for each in COMMANDS]
    headline = {f"{each['what']}_s": each["s"]["median"] for each in rows}
    harness.report("terraform", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
