locals {
  kinds = {
    actor = {
      machines = var.actor_machines
      spot     = true
      image    = var.actor_ami_id == null ? data.aws_ami.debian : data.aws_ami.actor[0]
      disk_gib = 20
    }
    learner = {
      machines = var.learner_machines
      spot     = var.learner_spot
      image    = length(data.aws_ami.learner) > 0 ? data.aws_ami.learner[0] : data.aws_ami.debian
      disk_gib = local.learner_gpus > 0 ? 100 : 30 # the Deep Learning AMI alone takes more than half
    }
  }
}

resource "aws_launch_template" "of" {
  for_each                             = local.kinds
  name_prefix                          = "${var.name}-${each.key}-"
  image_id                             = each.value.image.id
  user_data                            = base64encode(local.boot[each.key])
  update_default_version               = true
  instance_initiated_shutdown_behavior = "terminate" # a machine that shuts itself down costs nothing more

  iam_instance_profile {
    arn = aws_iam_instance_profile.of[each.key].arn
  }

  network_interfaces {
    associate_public_ip_address = true # there is no NAT gateway
    delete_on_termination       = true
    security_groups             = [aws_security_group.worker[each.key].id]
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = each.value.image.root_device_name

    ebs {
      encrypted             = true
      volume_type           = "gp3"
      volume_size           = each.value.disk_gib
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume"]

    content {
      resource_type = tag_specifications.value
      tags          = { Name = "${var.name}-${each.key}", "marless:fleet" = var.name }
    }
  }
}

# The pools set the number of machines, so nothing here scales them: no scaling policy, and an apply leaves their number alone.
resource "aws_autoscaling_group" "of" {
  for_each                  = local.kinds
  name                      = "${var.name}-${each.key}s"
  min_size                  = 0
  max_size                  = each.value.machines
  desired_capacity          = 0
  vpc_zone_identifier       = [for zone in local.zones : aws_subnet.zone[zone].id if contains(local.zones_of[each.key], zone)]
  protect_from_scale_in     = true  # the pool says which machine goes
  capacity_rebalance        = false # the pool replaces a machine that AWS expects to interrupt; with both, each would be replaced twice
  health_check_type         = "EC2"
  force_delete              = true # `terraform destroy` does not wait for machines that are protected
  wait_for_capacity_timeout = "0"

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = 0
      on_demand_percentage_above_base_capacity = each.value.spot ? 0 : 100
      on_demand_allocation_strategy            = "prioritized"
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.of[each.key].id
        version            = aws_launch_template.of[each.key].latest_version
      }

      dynamic "override" {
        for_each = local.types[each.key]

        content {
          instance_type = override.value
        }
      }
    }
  }

  initial_lifecycle_hook {
    name                 = "drain"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = 300
    default_result       = "CONTINUE"
  }

  # By these the pools, and `marless fleet`, know their groups and machines.
  dynamic "tag" {
    for_each = { "marless:fleet" = var.name, "marless:role" = each.key }

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  lifecycle {
    ignore_changes = [desired_capacity]

    precondition {
      condition     = local.too_few_vcpus[each.key] == ""
      error_message = "No ${each.key} machine can be started: ${local.too_few_vcpus[each.key]}. ${local.how_to_get_more}: ${each.key}_instance_types${each.key == "learner" ? ", such as [\"c7i.2xlarge\"] for learners on CPUs" : ""}."
    }

    precondition {
      condition     = each.key == "actor" || length(distinct([for type in local.types.learner : local.gpus_of[type]])) <= 1
      error_message = "Give learner_instance_types with the same number of GPUs: ${join(", ", [for type in local.types.learner : "${type} has ${local.gpus_of[type]}"])}."
    }
  }

  depends_on = [aws_route_table_association.public]
}
