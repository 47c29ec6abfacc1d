#!/bin/bash
# Calls an extraction on a Ray cluster until it exits with 0, at most ten times. The pauses between the calls grow from none
# to an hour: over three hours in all. Arguments are options of extract_howto100m.py:
#
#   bash ray_jobs/repeat.sh --dataset mine --features s3d --device cuda --accept-failures all
#
# Not repeated: exit code 2 (such as a wrong option, or no worker that can work), and a call that was stopped (130, 143).
set -uo pipefail
trap "exit 143" TERM  # after the driver, which gets the same signal, has written the finished videos
for minutes in 0 1 2 5 10 20 40 60 60 0; do
    python -m vlalign.ray_jobs.extract_howto100m "$@"
    code=$?
    case $code in
        0 | 2 | 130 | 143) break ;;
    esac
    sleep $((60 * minutes))
done
exit "$code"
