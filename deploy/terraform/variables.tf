variable "region" {
  description = "Region of everything."
  type        = string
}

variable "name" {
  description = "How the names of everything begin: several deployments in one account need different names."
  type        = string
  default     = "marless"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.name))
    error_message = "Use at most 20 lower-case letters, digits and hyphens, beginning with a letter."
  }
}

variable "client_cidrs" {
  description = "IPv4 ranges from which jobs are submitted, such as [\"203.0.113.7/32\"]. Nothing else reaches the coordinator."
  type        = list(string)

  validation {
    condition = length(var.client_cidrs) > 0 && alltrue([
      for cidr in var.client_cidrs : can(cidrnetmask(cidr)) && try(tonumber(split("/", cidr)[1]) >= 16, false)
    ])
    error_message = "Give at least one IPv4 range with a prefix of 16 or longer, such as 203.0.113.7/32: the port is not for everybody."
  }
}

variable "wheel" {
  description = "Path of marless's wheel: `pip wheel --no-deps --wheel-dir dist .` in the source folder makes it."
  type        = string

  validation {
    condition     = endswith(var.wheel, ".whl") && fileexists(var.wheel)
    error_message = "There is no such wheel. Make it in the source folder: pip wheel --no-deps --wheel-dir dist ."
  }
}

variable "budget_usd" {
  description = "Cost of the whole account in a month, in USD, at 80 % and 100 % of which an e-mail is sent."
  type        = number

  validation {
    condition     = var.budget_usd > 0
    error_message = "Give a positive number of USD."
  }
}

variable "budget_email" {
  description = "Where the budget's e-mails are sent."
  type        = string
}

variable "vpc_cidr" {
  description = "Addresses of the network: a range with a prefix of 16 to 22."
  type        = string
  default     = "10.77.0.0/16"

  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && try(contains(range(16, 23), tonumber(split("/", var.vpc_cidr)[1])), false)
    error_message = "Give an IPv4 range with a prefix of 16 to 22, such as 10.77.0.0/16."
  }
}

variable "zones" {
  description = "In how many availability zones machines are started. More zones have more spot capacity; traffic between zones costs."
  type        = number
  default     = 3

  validation {
    condition     = var.zones >= 1 && var.zones <= 6 && floor(var.zones) == var.zones
    error_message = "Give a number from 1 to 6."
  }
}

variable "port" {
  description = "Port of the coordinator, the only one that clients reach."
  type        = number
  default     = 7070

  validation {
    condition     = var.port >= 1024 && var.port <= 65535 && !contains([7071, 7072, 7073], var.port)
    error_message = "Give a port from 1024 to 65535 other than 7071 to 7073, which the other services use."
  }
}

variable "control_instance_type" {
  description = "Type of the machine of the four services and Redis (x86-64). Trajectories and replays are kept in its memory."
  type        = string
  default     = "m7i.xlarge"
}

variable "control_disk_gib" {
  description = "Size of its disk: Redis's log, run folders."
  type        = number
  default     = 50
}

variable "actor_instance_types" {
  description = "Types of actor machines (x86-64), all with the same number of vCPUs. More types have more spot capacity."
  type        = list(string)
  default     = ["c7i.4xlarge", "c7a.4xlarge", "c6i.4xlarge", "c6a.4xlarge", "m7i.4xlarge", "m6i.4xlarge"]

  validation {
    condition     = length(var.actor_instance_types) > 0
    error_message = "Give at least one type."
  }
}

variable "actor_machines" {
  description = "Largest number of actor machines."
  type        = number
  default     = 4
}

variable "actor_workers" {
  description = "Largest number of actor workers on all machines together; a machine has one for each vCPU."
  type        = number
  default     = 64
}

variable "learner_instance_types" {
  description = "Types of learner machines (x86-64), in order of preference, with the same number of GPUs; [\"c7i.2xlarge\"] and others without one learn on CPUs."
  type        = list(string)
  default     = ["g5.xlarge", "g6.xlarge", "g4dn.xlarge"]

  validation {
    condition     = length(var.learner_instance_types) > 0
    error_message = "Give at least one type."
  }
}

variable "learner_machines" {
  description = "Largest number of learner machines."
  type        = number
  default     = 1
}

variable "learner_workers" {
  description = "Largest number of learner workers on all machines together."
  type        = number
  default     = 1
}

variable "machine_hours" {
  description = "Hours after which an actor or learner machine shuts itself down, whatever it does. Its work is repeated by others."
  type        = number
  default     = 24
}

variable "learner_spot" {
  description = "Whether learner machines are spot instances."
  type        = bool
  default     = false
}

variable "ami_id" {
  description = "Image of the control plane, and of actor machines without one of their own: Debian 12 or newer, or Ubuntu 24.04 or newer. Default: the newest Debian 12."
  type        = string
  default     = null
}

variable "actor_ami_id" {
  description = "Image of actor machines, such as one that image.sh has made. Default: that of the control plane."
  type        = string
  default     = null
}

variable "learner_ami_id" {
  description = "Image of learner machines, with NVIDIA's driver if they have GPUs. Default: the newest Deep Learning Base AMI of Ubuntu 24.04; on CPUs, that of the control plane."
  type        = string
  default     = null
}

variable "env_modules" {
  description = "Packages whose environments jobs may use (MARLESS_ENV_MODULES)."
  type        = list(string)
  default     = []
}

variable "packages" {
  description = "Further pip requirements for all machines, with exact versions, such as [\"pettingzoo==1.27.0\"]."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.packages : can(regex("^[A-Za-z0-9._\\[\\],-]+==[A-Za-z0-9.+!-]+$", each))])
    error_message = "Write each as NAME==VERSION."
  }
}

variable "check_quotas" {
  description = "Whether a plan looks whether the account may start the machines (servicequotas:GetServiceQuota)."
  type        = bool
  default     = true
}

variable "wait_for_boot" {
  description = "Whether an apply waits until the control plane has booted; needs the AWS CLI."
  type        = bool
  default     = true
}

variable "force_destroy" {
  description = "Whether `terraform destroy` may delete what marless has written into the bucket. Apply it before you destroy."
  type        = bool
  default     = false
}
