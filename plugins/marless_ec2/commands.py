"""The commands `cloud down` and `cloud up`, which stop a deployment of deploy/terraform while nobody uses it, and start
it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from marless.app.cli.output import say
from marless.app.cli.working import Working
from marless.core.errors import NotFoundError, SpecError
from marless_ec2.group import AutoScaling, Json, client, made
from marless_ec2.plan import FLEET
from marless_ec2.settings import Ec2Settings, check_installed

app = typer.Typer(no_args_is_help=True, help="A deployment on AWS that Terraform has made.")
CALL_S = 15.0
"""Seconds that a call of AWS may take."""
NameOption = Annotated[str, typer.Option(metavar="NAME", help="The name of the deployment, a variable of Terraform.")]
RegionOption = Annotated[
    str, typer.Option(metavar="REGION", envvar=["AWS_REGION", "AWS_DEFAULT_REGION"], help="The region it is in.")
]


@dataclass(frozen=True)
class CloudDeployment:
    """What deploy/terraform has made under a name, in a region. Methods raise UnavailableError with a sentence."""

    name: str
    region: str

    def __str__(self) -> str:
        return f"deployment {self.name} in {self.region or 'the default region'}"

    def control(self) -> Json:
        """The instance of the control plane; raises NotFoundError if there is none."""
        wanted = {f"tag:{FLEET}": self.name, "tag:Name": f"{self.name}-control"}
        filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
        said = self._ec2("describe_instances", Filters=filters)
        found = [each for one in said["Reservations"] for each in one["Instances"]]
        alive = [each for each in found if each["State"]["Name"] not in ("shutting-down", "terminated")]
        if not alive:
            raise NotFoundError(f"there is no {self}: correct --name and --region, or make it (`terraform apply`)")
        return dict(alive[0])

    def stop(self, instance: str) -> None:
        """Stop an instance, and wait until it costs nothing; its pools give back their machines on the way."""
        self._ec2("stop_instances", InstanceIds=[instance])
        self._wait("instance_stopped", instance)

    def start(self, instance: str) -> None:
        """Start an instance, and wait until it runs."""
        self._ec2("start_instances", InstanceIds=[instance])
        self._wait("instance_running", instance)

    def end_machines(self) -> int:
        """Have the groups end the machines that a stopped pool has left; returns how many there were."""
        aws = client("autoscaling", self.region, CALL_S)
        filters = [{"Name": f"tag:{FLEET}", "Values": [self.name]}]
        call, where = "autoscaling:describe_auto_scaling_groups", str(self)
        said = made(lambda: aws.describe_auto_scaling_groups(Filters=filters), call, where)
        left = 0
        for each in said["AutoScalingGroups"]:
            group = AutoScaling(Ec2Settings(each["AutoScalingGroupName"], self.region, aws_s=CALL_S))
            serving = group.describe().serving
            left += len(serving)
            group.protect([machine.id for machine in serving if machine.is_protected], protected=False)
            group.want(0)
        return left

    def _wait(self, state: str, instance: str) -> None:
        waiter = client("ec2", self.region, CALL_S).get_waiter(state)
        made(lambda: waiter.wait(InstanceIds=[instance]), "ec2:describe_instances", f"{instance} of {self}")

    def _ec2(self, method: str, **given: Any) -> Json:  # Any: JSON
        aws = client("ec2", self.region, CALL_S)
        said: Json = made(lambda: getattr(aws, method)(**given), f"ec2:{method}", str(self))
        return said


@app.callback(rich_help_panel="Services")
def _cloud() -> None:
    """A group of verbs."""


@app.command()
def down(
    *,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep the store's disk, run folders, address and credentials.")
    ] = False,
    name: NameOption = "marless",
    region: RegionOption = "",
) -> None:
    """Stop a deployment: its machines end, and its control plane is stopped until `marless cloud up`."""
    if not keep_data:
        raise SpecError(
            "cloud down: give --keep-data to stop the machines and keep the rest; `terraform destroy` ends everything"
        )
    check_installed()
    deployment = CloudDeployment(name, region)
    control = deployment.control()["InstanceId"]
    with Working("stopping"):
        deployment.stop(control)
        left = deployment.end_machines()
    say(f"the {deployment} is stopped, {left} further machines end; `marless cloud up` starts it, and its jobs go on")


@app.command()
def up(*, name: NameOption = "marless", region: RegionOption = "") -> None:
    """Start a deployment that `marless cloud down --keep-data` has stopped, at the same address."""
    check_installed()
    deployment = CloudDeployment(name, region)
    with Working("starting"):
        deployment.start(deployment.control()["InstanceId"])
    say(f"the {deployment} runs; its services answer in about a minute")
