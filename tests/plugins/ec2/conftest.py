"""The stand-in for AWS, which tests of buckets use, too."""

from tests.cloud.conftest import _aws, aws, aws_between

__all__ = ["_aws", "aws", "aws_between"]
