#!/bin/bash
# Hands back the work of an AWS spot machine when AWS announces that it will reclaim the machine in two minutes. Ray's
# launcher starts this on each worker machine (extract_howto100m.yaml); the argument is the Python that has vlalign.
set -uo pipefail
address=http://169.254.169.254/latest  # the machine's own metadata, at the same address on all machines at AWS

notice_came() {
    token=$(curl --silent --fail --max-time 5 --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 60" $address/api/token) &&
        curl --silent --fail --max-time 5 --header "X-aws-ec2-metadata-token: $token" $address/meta-data/spot/instance-action
}

until notice_came; do  # 404 until then
    sleep 5
done
exec "$1" -m vlalign.ray_jobs.drain --seconds 100
