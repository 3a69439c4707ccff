#!/bin/bash
# Waits until the control plane has booted, for which it writes its secret: `terraform apply` and client.sh run this.
# From the environment: MARLESS_REGION, MARLESS_INSTANCE, MARLESS_SECRET, and MARLESS_WAIT_S (1200). Needs the AWS CLI.
set -euo pipefail
command -v aws > /dev/null || { echo "The AWS CLI is missing: install it, or give wait_for_boot=false." >&2; exit 1; }
until said=$(aws secretsmanager describe-secret --region "$MARLESS_REGION" --secret-id "$MARLESS_SECRET" --query VersionIdsToStages --output text 2>&1) \
    && [[ $said == *AWSCURRENT* ]]; do
    [[ $said != *rror* ]] || { echo "$said" >&2; exit 1; }
    if ((SECONDS > ${MARLESS_WAIT_S:-1200})); then
        echo "The control plane has not booted within ${MARLESS_WAIT_S:-1200} s. What its boot has printed:" \
            "aws ec2 get-console-output --latest --output text --region $MARLESS_REGION --instance-id $MARLESS_INSTANCE" >&2
        exit 1
    fi
    echo "waiting until the control plane has booted and made the credentials" >&2
    sleep 10
done
