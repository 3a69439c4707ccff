# marless on AWS: docs/deploying.md#aws-with-terraform.
terraform {
  required_version = ">= 1.10"

  required_providers {
    # .terraform.lock.hcl has the version that is tested; `terraform init -upgrade` takes a newer one.
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100.0, < 7.0.0"
    }
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { "marless:fleet" = var.name }
  }
}
