#!/bin/bash
# Starts a service of several hosts in the background, with what `marless credentials` has made for it: docs/deploying.md.
#   deploy/service.sh SERVICE OPTION...
# SERVICE is param_store, actor_pool, learner_pool or coordinator; the options are its own. MARLESS_CREDENTIALS names the directory of credentials.
# The service logs to SERVICE.log; SERVICE.pid has the number of its process.
set -euo pipefail
service=${1:?"give the name of a service, such as param_store"}
credentials=${MARLESS_CREDENTIALS:?"set it to the directory that marless credentials has made"}
own=$credentials/${service/_/-}

export MARLESS_TOKENS=$credentials/tokens MARLESS_TLS_CA=$own/authority.pem MARLESS_TLS_CERT=$own/certificate.pem MARLESS_TLS_KEY=$own/key.pem
python -m "marless.services.$service" "${@:2}" &> "$service.log" < /dev/null &
echo $! > "$service.pid"
