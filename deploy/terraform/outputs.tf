output "coordinator" {
  description = "Address for MARLESS_COORDINATOR."
  value       = "${aws_eip.control.public_ip}:${var.port}"
}

output "client_secret" {
  description = "Secret with the client's part of the credentials; the control plane writes it when it has booted."
  value       = aws_secretsmanager_secret.part["client"].name
}

output "region" {
  description = "Region of everything."
  value       = var.region
}

output "bucket" {
  description = "Bucket of what machines install and what marless keeps."
  value       = aws_s3_bucket.this.id
}

output "groups" {
  description = "Auto Scaling groups by kind of worker."
  value       = { for kind, group in aws_autoscaling_group.of : kind => group.name }
}

output "control" {
  description = "Instance of the control plane."
  value       = aws_instance.control.id
}

output "readers_policy" {
  description = "Policy to attach to whoever reads run folders in the bucket."
  value       = aws_iam_policy.readers.arn
}

output "images" {
  description = "What image.sh needs, by kind of worker."
  sensitive   = true # not a secret, but long

  value = {
    for kind, template in aws_launch_template.of : kind => {
      script   = templatefile("${path.module}/boot/image.sh.tftpl", { kind = kind, install = local.install[kind] })
      template = template.id
      type     = var.control_instance_type
      subnet   = aws_subnet.zone[local.control_zone].id
      group    = aws_security_group.worker[kind].id
    }
  }
}
