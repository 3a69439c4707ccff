# What machines run when they boot. Nothing in it is secret.
locals {
  boot_minutes = 20
  boot = {
    for use, script in local.scripts : use => templatefile("${path.module}/boot/retried.sh.tftpl", {
      title     = use == "control" ? "marless's control plane" : "a machine with ${use} workers of marless"
      script    = script
      deadlines = use == "control" ? null : { boot_minutes = local.boot_minutes, max_hours = var.machine_hours }
    })
  }
  scripts = merge(
    { control = templatefile("${path.module}/boot/control.sh.tftpl", {
      install         = local.install.control
      region          = var.region
      bucket          = aws_s3_bucket.this.id
      public_ip       = aws_eip.control.public_ip
      private_ip      = local.control_ip
      port            = var.port
      ports           = local.ports
      secrets         = { for part, secret in aws_secretsmanager_secret.part : part => secret.arn }
      env_modules     = join(",", var.env_modules)
      launchers       = { for kind in keys(local.kinds) : kind => "ec2,group=${var.name}-${kind}s,region=${var.region},boot_s=${60 * local.boot_minutes}${kind == "learner" ? ",slots=${max(1, local.learner_gpus)}" : ""}" }
      limits          = { actor = var.actor_workers, learner = var.learner_workers }
      learner_threads = max(1, floor(local.learner_vcpus / max(1, local.learner_gpus))) # all of its machine
    }) },
    { for kind in keys(local.kinds) : kind => templatefile("${path.module}/boot/worker.sh.tftpl", {
      install     = local.install[kind]
      kind        = kind
      gpus        = kind == "learner" ? local.learner_gpus : 0
      secret      = aws_secretsmanager_secret.part["${kind}-worker"].arn
      pool        = "${local.control_ip}:${local.ports["${kind}-pool"]}"
      env_modules = join(",", var.env_modules)
    }) },
  )
  # What install.sh.tftpl does for a use; a machine whose image has it done under this digest skips it.
  install = {
    for use in concat(["control"], keys(local.kinds)) : use => templatefile("${path.module}/boot/install.sh.tftpl", {
      region          = var.region
      exchange        = file("${path.module}/boot/exchange.py")
      bucket          = aws_s3_bucket.this.id
      wheel           = basename(var.wheel)
      packages        = var.packages
      locks           = local.locks[use]
      cpu_torch       = use == "learner" && local.learner_gpus == 0
      objects         = concat(local.files[use], [basename(var.wheel)])
      system_packages = use == "control" ? ["openssl", "redis-server"] : []
      digest = sha256(jsonencode([
        filesha256(var.wheel), [for file in local.files[use] : filesha256("${local.requirements}/${file}")], var.packages,
      ]))
    })
  }
}
