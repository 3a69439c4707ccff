#!/bin/bash
# Fails if a destroy would come to a bucket with run folders that it may not delete: Terraform runs this before it destroys anything.
set -euo pipefail
[[ $MARLESS_MAY_BE_DELETED != true ]] || exit 0
command -v aws > /dev/null || { echo "The AWS CLI is missing: install it, so that it can be seen whether the bucket has run folders." >&2; exit 1; }
if ! held=$(aws s3api list-object-versions --region "$MARLESS_REGION" --bucket "$MARLESS_BUCKET" --prefix runs/ --max-items 1 \
    --query "length(Versions || DeleteMarkers || \`[]\`)" --output text 2>&1); then
    [[ $held == *NoSuchBucket* ]] || { echo "Nothing was destroyed, since it cannot be seen whether $MARLESS_BUCKET has run folders: $held" >&2; exit 1; }
    exit 0
fi
[[ ${held%%$'\n'*} == 0 ]] || {
    echo "Nothing was destroyed: the bucket $MARLESS_BUCKET has run folders, or old versions of them." \
        "Download what you need (aws s3 sync s3://$MARLESS_BUCKET/runs FOLDER); then \`terraform apply -var force_destroy=true\` allows it to be deleted." >&2
    exit 1
}
