locals {
  # An address of the control plane's subnet: workers and certificates name it before the machine exists.
  control_ip = cidrhost(aws_subnet.zone[local.control_zone].cidr_block, 10)
  ports      = { param-store = 7071, actor-pool = 7072, learner-pool = 7073 }
}

resource "aws_vpc" "this" {
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  tags                 = { Name = var.name }

  lifecycle {
    precondition {
      condition     = alltrue([for use, zones in local.zones_of : length(setintersection(zones, local.zones)) > 0])
      error_message = "No zone that is used in ${var.region} offers ${join(", or ", [for use, zones in local.zones_of : join(", ", local.wanted[use]) if length(setintersection(zones, local.zones)) == 0])}: choose other types, more zones, or another region."
    }
  }
}

# Subnets are public, so that no NAT gateway has to be paid for; nothing but the coordinator's port can be reached from outside.
resource "aws_subnet" "zone" {
  for_each                = toset(local.zones)
  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.vpc_cidr, 3, index(local.all_zones, each.key))
  map_public_ip_on_launch = false
  tags                    = { Name = "${var.name}-${each.key}" }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.this.id
  }
}

resource "aws_route_table_association" "public" {
  for_each       = aws_subnet.zone
  subnet_id      = each.value.id
  route_table_id = aws_route_table.public.id
}

# The VPC's default group, which AWS makes with open rules between its members, gets none.
resource "aws_default_security_group" "closed" {
  vpc_id = aws_vpc.this.id
}

resource "aws_security_group" "control" {
  name_prefix = "${var.name}-control-"
  description = "The four services of marless"
  vpc_id      = aws_vpc.this.id
  tags        = { Name = "${var.name}-control" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "worker" {
  for_each    = local.kinds
  name_prefix = "${var.name}-${each.key}-"
  description = "Workers of marless, which only dial out"
  vpc_id      = aws_vpc.this.id
  tags        = { Name = "${var.name}-${each.key}" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "client" {
  for_each          = toset(var.client_cidrs)
  security_group_id = aws_security_group.control.id
  description       = "Clients, who submit jobs"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = var.port
  to_port           = var.port
}

locals {
  # Actors upload their trajectories to the learner pool.
  dials = merge(
    { for port in ["param-store", "actor-pool", "learner-pool"] : "actor-${port}" => { kind = "actor", port = local.ports[port] } },
    { for port in ["param-store", "learner-pool"] : "learner-${port}" => { kind = "learner", port = local.ports[port] } },
  )
  # Packages of Debian (80) and of PyPI, and the APIs of AWS (443).
  fetches = { for each in setproduct(concat(["control"], keys(local.kinds)), [80, 443]) : "${each[0]}-${each[1]}" => { from = each[0], port = each[1] } }
  groups  = merge({ control = aws_security_group.control.id }, { for kind, group in aws_security_group.worker : kind => group.id })
}

resource "aws_vpc_security_group_ingress_rule" "worker" {
  for_each                     = local.dials
  security_group_id            = aws_security_group.control.id
  description                  = each.key
  referenced_security_group_id = aws_security_group.worker[each.value.kind].id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "worker" {
  for_each                     = local.dials
  security_group_id            = aws_security_group.worker[each.value.kind].id
  description                  = each.key
  referenced_security_group_id = aws_security_group.control.id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "fetch" {
  for_each          = local.fetches
  security_group_id = local.groups[each.value.from]
  description       = "Packages, and the APIs of AWS"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
}

# Free, and S3 is reached without the internet.
resource "aws_vpc_endpoint" "s3" {
  vpc_id          = aws_vpc.this.id
  service_name    = "com.amazonaws.${var.region}.s3"
  route_table_ids = [aws_route_table.public.id]
  tags            = { Name = "${var.name}-s3" }
}
