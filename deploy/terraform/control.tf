resource "aws_eip" "control" {
  domain = "vpc"
  tags   = { Name = "${var.name}-control" }
}

# An interface of its own, which has both addresses before the machine boots and keeps them if that is replaced.
resource "aws_network_interface" "control" {
  subnet_id       = aws_subnet.zone[local.control_zone].id
  private_ips     = [local.control_ip]
  security_groups = [aws_security_group.control.id]
  tags            = { Name = "${var.name}-control" }
}

resource "aws_eip_association" "control" {
  allocation_id        = aws_eip.control.id
  network_interface_id = aws_network_interface.control.id
  depends_on           = [aws_route_table_association.public]
}

resource "aws_instance" "control" {
  ami                         = data.aws_ami.debian.id
  instance_type               = var.control_instance_type
  iam_instance_profile        = aws_iam_instance_profile.of["control"].name
  user_data                   = local.boot.control
  user_data_replace_on_change = false
  tags                        = { Name = "${var.name}-control" }

  network_interface {
    network_interface_id = aws_network_interface.control.id
    device_index         = 0
  }

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

    precondition {
      condition     = local.too_few_vcpus.control == ""
      error_message = "The control plane cannot be started: ${local.too_few_vcpus.control}. ${local.how_to_get_more}: control_instance_type."
    }
  }

  # It installs from its first second on: by then it has its address, and the way out.
  depends_on = [
    aws_eip_association.control, aws_vpc_security_group_egress_rule.fetch, aws_iam_role_policy.control,
    aws_s3_object.lock, aws_s3_object.wheel,
  ]
}

# An apply ends when the control plane has booted, or says where to read why it has not.
resource "terraform_data" "booted" {
  count            = var.wait_for_boot ? 1 : 0
  triggers_replace = aws_instance.control.id

  provisioner "local-exec" {
    command = "'${path.module}/boot/wait.sh'"
    environment = {
      MARLESS_REGION   = var.region
      MARLESS_INSTANCE = aws_instance.control.id
      MARLESS_SECRET   = aws_secretsmanager_secret.part["client"].id
    }
  }
}

data "aws_ami" "debian" {
  most_recent = true
  owners      = var.ami_id == null ? ["136693071363"] : null # Debian

  filter {
    name   = var.ami_id == null ? "name" : "image-id"
    values = [var.ami_id == null ? "debian-12-amd64-*" : var.ami_id]
  }
}

data "aws_ami" "actor" {
  count = var.actor_ami_id == null ? 0 : 1

  filter {
    name   = "image-id"
    values = [var.actor_ami_id]
  }
}

data "aws_ami" "learner" {
  count       = local.learner_gpus > 0 || var.learner_ami_id != null ? 1 : 0
  most_recent = true
  owners      = var.learner_ami_id == null ? ["amazon"] : null

  filter {
    name   = var.learner_ami_id == null ? "name" : "image-id"
    values = [var.learner_ami_id == null ? "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *" : var.learner_ami_id]
  }
}
