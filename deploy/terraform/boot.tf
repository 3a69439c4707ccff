# What machines run when they boot. Nothing in it is secret.
locals {
  boot_minutes = 20
  boot = merge(
    { control = templatefile("${path.module}/boot/control.sh.tftpl", {
      install = templatefile("${path.module}/boot/install.sh.tftpl", merge(local.installed, {
        locks           = local.locks.control
        objects         = concat(local.locks.control, [basename(var.wheel)])
        system_packages = ["openssl", "redis-server"]
      }))
      region      = var.region
      bucket      = aws_s3_bucket.this.id
      public_ip   = aws_eip.control.public_ip
      private_ip  = local.control_ip
      port        = var.port
      ports       = local.ports
      secrets     = { for part, secret in aws_secretsmanager_secret.part : part => secret.arn }
      env_modules = join(",", var.env_modules)
      launchers   = { for kind in keys(local.kinds) : kind => "ec2,group=${var.name}-${kind}s,region=${var.region},boot_s=${60 * local.boot_minutes}${kind == "learner" ? ",slots=1" : ""}" }
      limits      = { actor = var.actor_workers, learner = var.learner_workers }
    }) },
    { for kind in keys(local.kinds) : kind => templatefile("${path.module}/boot/worker.sh.tftpl", {
      install = templatefile("${path.module}/boot/install.sh.tftpl", merge(local.installed, {
        locks           = local.locks[kind]
        objects         = concat(local.locks[kind], [basename(var.wheel)])
        system_packages = []
      }))
      kind         = kind
      secret       = aws_secretsmanager_secret.part["${kind}-worker"].arn
      pool         = "${local.control_ip}:${local.ports["${kind}-pool"]}"
      boot_minutes = local.boot_minutes
      max_hours    = var.machine_hours
      env_modules  = join(",", var.env_modules)
    }) },
  )
  installed = {
    region   = var.region
    exchange = file("${path.module}/boot/exchange.py")
    bucket   = aws_s3_bucket.this.id
    wheel    = basename(var.wheel)
    packages = var.packages
  }
}
