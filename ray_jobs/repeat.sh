#!/bin/bash
# Repeats an extraction on the cluster until it exits with 0: at once, then after longer and longer pauses, ten times in
# all, which takes over three hours if a server or a disk stays down. Arguments are options of extract_howto100m.py:
#
#   bash ray_jobs/repeat.sh --dataset mine --features s3d --device cuda --accept-failures all
#
# A wrong call (2) and one that somebody stopped (130, 143) are not repeated.
set -uo pipefail
trap "exit 143" TERM  # once the driver, which gets the signal, too, has written what is finished
for minutes in 0 1 2 5 10 20 40 60 60 0; do
    python -m vlalign.ray_jobs.extract_howto100m "$@"
    code=$?
    case $code in
        0 | 2 | 130 | 143) break ;;
    esac
    sleep $((60 * minutes))
done
exit "$code"
