# Which instance types this region offers, in which zones, and how many vCPUs the account may start of them.
data "aws_availability_zones" "all" {
  state = "available"

  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

data "aws_ec2_instance_type_offerings" "all" {
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = distinct(concat([var.control_instance_type], var.actor_instance_types, var.learner_instance_types))
  }
}

data "aws_ec2_instance_type" "offered" {
  for_each      = toset(data.aws_ec2_instance_type_offerings.all.instance_types)
  instance_type = each.key
}

locals {
  wanted = { control = [var.control_instance_type], actor = var.actor_instance_types, learner = var.learner_instance_types }
  types  = { for use, types in local.wanted : use => [for type in types : type if contains(keys(data.aws_ec2_instance_type.offered), type)] }
  # A zone keeps its place, and so its addresses, when another one begins to offer a type.
  all_zones = sort(data.aws_availability_zones.all.names)
  zones_of = {
    for use, types in local.types : use => [
      for zone in local.all_zones : zone if anytrue([
        for place, type in data.aws_ec2_instance_type_offerings.all.instance_types :
        contains(types, type) && data.aws_ec2_instance_type_offerings.all.locations[place] == zone
      ])
    ]
  }
  # First the zones that offer something for each use, and among the others those for the control plane.
  ranked = concat(
    [for zone in local.zones_of.control : zone if contains(local.zones_of.actor, zone) && contains(local.zones_of.learner, zone)],
    local.zones_of.control, local.zones_of.actor, local.zones_of.learner,
  )
  zones        = slice(distinct(local.ranked), 0, min(var.zones, length(distinct(local.ranked))))
  control_zone = try([for zone in local.zones : zone if contains(local.zones_of.control, zone)][0], null)

  gpus_of       = { for type, told in data.aws_ec2_instance_type.offered : type => sum(concat([0], [for gpu in told.gpus : gpu.count])) }
  learner_gpus  = max(concat([0], [for type in local.types.learner : local.gpus_of[type]])...)
  learner_vcpus = try(min([for type in local.types.learner : data.aws_ec2_instance_type.offered[type].default_vcpus]...), 1)

  # Codes of Service Quotas by the first letters of a type: vCPUs of machines that run at a time. Other families are not checked.
  families = {
    "a c d h i m r t z" = { on_demand = "L-1216C47A", spot = "L-34B43A08" }
    "g vt"              = { on_demand = "L-DB2E81BA", spot = "L-3819A6DF" }
    "p"                 = { on_demand = "L-417A185B", spot = "L-7212CCBC" }
  }
  family_of = {
    for type in keys(data.aws_ec2_instance_type.offered) :
    type => one([for letters in keys(local.families) : letters if contains(split(" ", letters), regex("^[a-z]+", type))])
  }
  market = { control = "on_demand", actor = "spot", learner = var.learner_spot ? "spot" : "on_demand" }
  quota_of = {
    for use, types in local.types : use => {
      for type in types : type => local.families[local.family_of[type]][local.market[use]] if local.family_of[type] != null && var.check_quotas
    }
  }
  # By use: the quotas that are too small for one machine of any of its types, in words; "" if a machine can be started.
  too_few_vcpus = {
    for use, codes in local.quota_of : use => length(codes) < length(local.types[use]) || anytrue([
      for type, code in codes : data.aws_servicequotas_service_quota.vcpus[code].value >= data.aws_ec2_instance_type.offered[type].default_vcpus
      ]) ? "" : join("; ", [
      for type, code in codes :
      "'${data.aws_servicequotas_service_quota.vcpus[code].quota_name}' (${code}) allows ${data.aws_servicequotas_service_quota.vcpus[code].value} vCPUs, and one ${type} has ${data.aws_ec2_instance_type.offered[type].default_vcpus}"
    ])
  }
  how_to_get_more = "Ask for more (`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code CODE --desired-value VCPUS --region ${var.region}`), or choose types of another quota"
}

data "aws_servicequotas_service_quota" "vcpus" {
  for_each     = toset(flatten([for codes in local.quota_of : values(codes)]))
  service_code = "ec2"
  quota_code   = each.key
}

check "quotas_suffice_for_all_machines" {
  assert {
    condition = alltrue(flatten([
      for use, kind in local.kinds : [
        for type, code in local.quota_of[use] :
        data.aws_servicequotas_service_quota.vcpus[code].value >= kind.machines * data.aws_ec2_instance_type.offered[type].default_vcpus
      ]
    ]))
    error_message = "Fewer machines than actor_machines and learner_machines can run: ${join("; ", distinct(flatten([
      for use, kind in local.kinds : [
        for type, code in local.quota_of[use] :
        "'${data.aws_servicequotas_service_quota.vcpus[code].quota_name}' (${code}) allows ${data.aws_servicequotas_service_quota.vcpus[code].value} vCPUs, and ${kind.machines} ${type} have ${kind.machines * data.aws_ec2_instance_type.offered[type].default_vcpus}"
        if data.aws_servicequotas_service_quota.vcpus[code].value < kind.machines * data.aws_ec2_instance_type.offered[type].default_vcpus
      ]
    ])))}. ${local.how_to_get_more}."
  }
}
