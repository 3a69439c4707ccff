# One role for each kind of machine: it may do what that kind needs, on what belongs to it.
data "aws_iam_policy_document" "machines" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "of" {
  for_each           = toset(concat(["control"], keys(local.kinds)))
  name_prefix        = "${var.name}-${each.key}-"
  description        = "Machines of marless: ${each.key}"
  assume_role_policy = data.aws_iam_policy_document.machines.json
}

resource "aws_iam_instance_profile" "of" {
  for_each = aws_iam_role.of
  name     = each.value.name
  role     = each.value.name
}

data "aws_iam_policy_document" "control" {
  statement {
    sid       = "Install"
    actions   = ["s3:GetObject"]
    resources = ["${aws_s3_bucket.this.arn}/install/*"]
  }

  statement {
    sid       = "Runs"
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = ["${aws_s3_bucket.this.arn}/runs/*"]
  }

  # Of the whole bucket: with a condition on the prefix, S3 would answer reads of missing objects as if they were forbidden.
  statement {
    sid       = "ListRuns"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.this.arn]
  }

  statement {
    sid       = "HandOutSecrets"
    actions   = ["secretsmanager:PutSecretValue"]
    resources = [for secret in aws_secretsmanager_secret.part : secret.arn]
  }

  statement {
    sid = "Scale"
    actions = [
      "autoscaling:SetDesiredCapacity", "autoscaling:SetInstanceProtection", "autoscaling:TerminateInstanceInAutoScalingGroup",
      "autoscaling:CompleteLifecycleAction", "autoscaling:PutScheduledUpdateGroupAction",
    ]
    resources = [for group in aws_autoscaling_group.of : group.arn]
  }

  # AWS knows no resources for these.
  statement {
    sid       = "Look"
    resources = ["*"]

    actions = [
      "autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities", "autoscaling:DescribeLifecycleHooks",
      "ec2:DescribeSpotPriceHistory",
    ]
  }
}

resource "aws_iam_role_policy" "control" {
  name   = "control"
  role   = aws_iam_role.of["control"].id
  policy = data.aws_iam_policy_document.control.json
}

data "aws_iam_policy_document" "worker" {
  for_each = local.kinds

  statement {
    sid       = "Install"
    actions   = ["s3:GetObject"]
    resources = ["${aws_s3_bucket.this.arn}/install/*"]
  }

  statement {
    sid       = "OwnSecret"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [aws_secretsmanager_secret.part["${each.key}-worker"].arn]
  }
}

resource "aws_iam_role_policy" "worker" {
  for_each = local.kinds
  name     = each.key
  role     = aws_iam_role.of[each.key].id
  policy   = data.aws_iam_policy_document.worker[each.key].json
}

# For people and programs that read run folders and policies by s3://BUCKET/runs: attach it to them.
data "aws_iam_policy_document" "readers" {
  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = ["${aws_s3_bucket.this.arn}/runs/*"]
  }

  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.this.arn]
  }
}

resource "aws_iam_policy" "readers" {
  name_prefix = "${var.name}-readers-"
  description = "Reads run folders of marless"
  policy      = data.aws_iam_policy_document.readers.json
}
