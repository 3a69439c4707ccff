# marless on AWS: docs/deploying.md#aws-with-terraform.
terraform {
  required_version = ">= 1.10"

  required_providers {
    # One exact version instead of a lock file: a lock needs the hashes of all platforms that users have.
    aws = {
      source  = "hashicorp/aws"
      version = "5.100.0"
    }
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { "marless:fleet" = var.name }
  }
}
