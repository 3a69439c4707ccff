resource "aws_eip" "control" {
  domain = "vpc"
  tags   = { Name = "${var.name}-control" }
}

resource "aws_eip_association" "control" {
  allocation_id = aws_eip.control.id
  instance_id   = aws_instance.control.id
}

resource "aws_instance" "control" {
  ami                         = data.aws_ami.debian.id
  instance_type               = var.control_instance_type
  subnet_id                   = aws_subnet.zone[local.zones[0]].id
  private_ip                  = local.control_ip
  associate_public_ip_address = true # to install before the fixed address is associated
  vpc_security_group_ids      = [aws_security_group.control.id]
  iam_instance_profile        = aws_iam_instance_profile.of["control"].name
  user_data                   = local.boot.control
  user_data_replace_on_change = false
  tags                        = { Name = "${var.name}-control" }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    encrypted   = true
    volume_type = "gp3"
    volume_size = var.control_disk_gib
  }

  # It has Redis's log and the run folders: a newer image, or another boot script, never replaces it. `-replace=aws_instance.control` does.
  lifecycle {
    ignore_changes = [ami, user_data]
  }

  depends_on = [
    aws_route_table_association.public, aws_vpc_security_group_egress_rule.fetch, aws_iam_role_policy.control,
    aws_s3_object.lock, aws_s3_object.wheel,
  ]
}

data "aws_ami" "debian" {
  most_recent = true
  owners      = var.ami_id == null ? ["136693071363"] : null # Debian

  filter {
    name   = var.ami_id == null ? "name" : "image-id"
    values = [var.ami_id == null ? "debian-12-amd64-*" : var.ami_id]
  }
}

data "aws_ami" "learner" {
  most_recent = true
  owners      = var.learner_ami_id == null ? ["amazon"] : null

  filter {
    name   = var.learner_ami_id == null ? "name" : "image-id"
    values = [var.learner_ami_id == null ? "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *" : var.learner_ami_id]
  }
}
