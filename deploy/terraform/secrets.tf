# Places for secrets. The control plane makes the secrets at its first boot and writes them here: Terraform never has them.
resource "aws_secretsmanager_secret" "part" {
  for_each                = toset(["actor-worker", "learner-worker", "client"])
  name_prefix             = "${var.name}-${each.key}-"
  description             = "Certificate and token of marless's ${each.key}"
  recovery_window_in_days = 0
}
