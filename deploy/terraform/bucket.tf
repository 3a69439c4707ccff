# What machines install (install/), and what marless keeps (runs/).
resource "aws_s3_bucket" "this" {
  bucket_prefix = "${var.name}-"
  force_destroy = var.force_destroy

  # Inline, although the provider has a resource for it, which takes a minute to be made.
  lifecycle_rule {
    enabled                                = true
    abort_incomplete_multipart_upload_days = 2

    noncurrent_version_expiration {
      days = 30
    }

    expiration {
      expired_object_delete_marker = true
    }
  }
}

resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

data "aws_iam_policy_document" "tls_only" {
  statement {
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.this.arn, "${aws_s3_bucket.this.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "tls_only" {
  bucket     = aws_s3_bucket.this.id
  policy     = data.aws_iam_policy_document.tls_only.json
  depends_on = [aws_s3_bucket_public_access_block.this]
}

locals {
  requirements = "${path.module}/../../requirements"
  # What is installed is what the locks name, with hashes.
  locks = {
    control = ["image-control.txt"]
    actor   = ["image-actors.txt"]
    learner = concat(local.learner_gpus > 0 ? ["torch.txt"] : [], ["image-learners.txt"])
  }
  files = merge(local.locks, { learner = ["torch.txt", "torch-cpu.txt", "image-learners.txt"] })
}

resource "aws_s3_object" "lock" {
  for_each    = toset(flatten(values(local.files)))
  bucket      = aws_s3_bucket.this.id
  key         = "install/${each.key}"
  source      = "${local.requirements}/${each.key}"
  source_hash = filemd5("${local.requirements}/${each.key}")
  depends_on  = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_object" "wheel" {
  bucket      = aws_s3_bucket.this.id
  key         = "install/${basename(var.wheel)}"
  source      = var.wheel
  source_hash = filemd5(var.wheel)
  depends_on  = [aws_s3_bucket_versioning.this]
}

# A destroy that could not delete the bucket would have ended everything else before it says so. This goes first, and stops it.
resource "terraform_data" "runs_are_safe" {
  input = { bucket = aws_s3_bucket.this.id, region = var.region, may_be_deleted = var.force_destroy }

  provisioner "local-exec" {
    when    = destroy
    command = "'${path.module}/boot/before_destroy.sh'"
    environment = {
      MARLESS_REGION         = self.output.region
      MARLESS_BUCKET         = self.output.bucket
      MARLESS_MAY_BE_DELETED = self.output.may_be_deleted
    }
  }

  depends_on = [
    aws_autoscaling_group.of, aws_budgets_budget.monthly, aws_default_security_group.closed, aws_iam_policy.readers,
    aws_iam_role_policy.worker, aws_instance.control, aws_s3_bucket_policy.tls_only,
    aws_s3_bucket_server_side_encryption_configuration.this, aws_s3_object.lock, aws_s3_object.wheel, aws_vpc_endpoint.s3,
    aws_vpc_security_group_egress_rule.worker, aws_vpc_security_group_ingress_rule.client, aws_vpc_security_group_ingress_rule.worker,
  ]
}
