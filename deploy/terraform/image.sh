#!/bin/bash
# Makes an image of actor or learner machines that has everything installed, so that they fetch nothing but their credentials at boot,
# and prints the setting for it. Needs the AWS CLI, and the state of `terraform apply`; takes some minutes.
#   deploy/terraform/image.sh actor >> deploy/terraform/terraform.tfvars
# Machines whose image has another wheel or other packages than the deployment install these as if they had none.
set -euo pipefail
kind=${1:?"give actor or learner"}
here=$(dirname "$0")
told() { terraform -chdir="$here" output -json images | python3 -I -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]][sys.argv[2]])' "$kind" "$1"; }
AWS_DEFAULT_REGION=$(terraform -chdir="$here" output -raw region)
export AWS_DEFAULT_REGION
script=$(mktemp)
trap 'rm -f "$script"' EXIT
told script > "$script"
machine=$(aws ec2 run-instances --launch-template "LaunchTemplateId=$(told template)" --instance-type "$(told type)" --user-data "file://$script" \
    --network-interfaces "DeviceIndex=0,SubnetId=$(told subnet),Groups=$(told group),AssociatePublicIpAddress=true" \
    --instance-initiated-shutdown-behavior stop --query "Instances[0].InstanceId" --output text)
trap 'rm -f "$script"; aws ec2 terminate-instances --instance-ids "$machine" > /dev/null' EXIT
echo "$machine installs marless, and switches itself off" >&2
aws ec2 wait instance-stopped --instance-ids "$machine" || {
    echo "$machine has not installed marless; what it has printed: aws ec2 get-console-output --latest --output text --instance-id $machine" >&2
    aws ec2 get-console-output --latest --output text --instance-id "$machine" | tail -n 20 >&2
    exit 1
}
image=$(aws ec2 create-image --instance-id "$machine" --name "marless-$kind-$(date -u +%Y%m%d-%H%M%S)" --query ImageId --output text)
echo "$image is being made" >&2
aws ec2 wait image-available --image-ids "$image" || aws ec2 wait image-available --image-ids "$image"
echo "${kind}_ami_id = \"$image\""
