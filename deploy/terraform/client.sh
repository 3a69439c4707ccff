#!/bin/bash
# Fetches the client's part of a deployment's credentials, and prints the settings of `marless` for it: docs/deploying.md.
#   eval "$(deploy/terraform/client.sh FOLDER)"
# FOLDER is made, open to you only. Waits for up to 20 minutes until the control plane has booted. Needs the AWS CLI, and the state of
# `terraform apply`.
set -euo pipefail
folder=${1:?"give a folder for the credentials"}
here=$(dirname "$0")
output() { terraform -chdir="$here" output -raw "$1"; }
MARLESS_SECRET=$(output client_secret) MARLESS_REGION=$(output region) MARLESS_INSTANCE=$(output control) coordinator=$(output coordinator)
export MARLESS_SECRET MARLESS_REGION MARLESS_INSTANCE
"$here/boot/wait.sh"
answer=$(aws secretsmanager get-secret-value --region "$MARLESS_REGION" --secret-id "$MARLESS_SECRET" --query SecretString --output text)

umask 077
mkdir -p "$folder"
python3 -I -c '
import json, pathlib, sys
for name, text in json.load(sys.stdin).items():
    pathlib.Path(sys.argv[1], pathlib.Path(name).name).write_text(text)
' "$folder" <<< "$answer"
folder=$(cd "$folder" && pwd)
printf 'export MARLESS_COORDINATOR=%q MARLESS_TOKENS=%q MARLESS_TLS_CA=%q\n' "$coordinator" "$folder" "$folder/authority.pem"
