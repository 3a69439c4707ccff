#!/bin/bash
# Fetches the client's part of a deployment's credentials, and prints the settings of `marless` for it: docs/deploying.md.
#   eval "$(deploy/terraform/client.sh FOLDER)"
# FOLDER is made, open to you only. Waits until the control plane has booted. Needs the AWS CLI, and the state of `terraform apply`.
set -euo pipefail
folder=${1:?"give a folder for the credentials"}
output() { terraform -chdir="$(dirname "$0")" output -raw "$1"; }
secret=$(output client_secret) region=$(output region) coordinator=$(output coordinator)

fetch() { aws secretsmanager get-secret-value --region "$region" --secret-id "$secret" --query SecretString --output text 2>&1; }
until answer=$(fetch); do
    [[ $answer == *ResourceNotFoundException* ]] || { echo "$answer" >&2; exit 1; }
    echo "waiting until the control plane has booted and made the credentials" >&2
    sleep 10
done

umask 077
mkdir -p "$folder"
python3 -I -c '
import json, pathlib, sys
for name, text in json.load(sys.stdin).items():
    pathlib.Path(sys.argv[1], pathlib.Path(name).name).write_text(text)
' "$folder" <<< "$answer"
folder=$(cd "$folder" && pwd)
printf 'export MARLESS_COORDINATOR=%q MARLESS_TOKENS=%q MARLESS_TLS_CA=%q\n' "$coordinator" "$folder" "$folder/authority.pem"
