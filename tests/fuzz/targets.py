"""What is fuzzed: one function for each thing that reads data of others, and how often it is tried at full size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz import aggregations, files, messages, policies, requests
from tests.fuzz.choices import Choices


@dataclass(frozen=True)
class Target:
    """A reader under test. It returns, or raises a MarlessError; anything else is a finding."""

    read: Callable[[Choices], object]
    share: int
    """Of the executions: cheap ones have many."""
    about: str


TARGETS = {
    "frame": Target(messages.frame, 400, "frames of bulk transfers"),
    "transfer": Target(messages.transfer, 10, "a header and data, frame by frame"),
    "header": Target(messages.upload_header, 100, "headers of uploads"),
    "trajectory": Target(messages.trajectory, 25, "arrays of uploads against what their job declares"),
    "upload": Target(messages.upload, 2, "whole uploads into the spool"),
    "lent": Target(messages.lent, 20, "pieces of lent files"),
    "publish": Target(messages.publish, 8, "whole publishes, as far as the store"),
    "aggregate": Target(aggregations.request, 60, "requests to the parameter function"),
    "gradient": Target(aggregations.gradient, 8, "gradients and states that the parameter function reads"),
    "handover": Target(messages.handover, 60, "what a pool hands to a worker"),
    "host": Target(messages.host, 8, "what hosts say to their pool"),
    "spec": Target(requests.spec, 4, "job specs from the wire"),
    "override": Target(requests.override, 2, "--set and what comes of it"),
    "prices": Target(requests.prices, 4, "price tables of a job"),
    "spaces": Target(requests.spaces, 20, "spaces of an environment from the wire"),
    "cursor": Target(requests.cursor, 100, "cursors of the parameter store"),
    "page_token": Target(requests.page_token, 60, "page tokens of the list of jobs"),
    "calibration": Target(requests.calibration, 60, "calibrations from another process"),
    "record": Target(files.record, 30, "lines of rounds.jsonl"),
    "rounds": Target(files.rounds, 10, "rounds.jsonl, from any round on, and backwards"),
    "checkpoint": Target(files.manifest, 50, "manifests of checkpoints"),
    "head": Target(files.head, 30, "head.json of a run folder in a bucket"),
    "job_file": Target(files.job_file, 30, "job.json of a run folder"),
    "spot": Target(files.spot_prices, 20, "recorded prices of spot machines"),
    "tokens": Target(files.token_files, 8, "files of tokens, and what callers show"),
    "scheduler": Target(files.scheduler, 10, "files of a trained scheduler"),
    "acting": Target(policies.acting, 25, "acting parts of policies, as actors pull them"),
    "module": Target(policies.module, 8, "graphs of policies that are modules of torch"),
    "policy_file": Target(policies.policy_file, 8, "exported policies, loaded and acted with"),
    "team_file": Target(policies.team_file, 8, "exported teams, loaded and acted with"),
}
