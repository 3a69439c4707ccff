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
