#!/bin/sh
# Submits one command of the route pipeline to a cluster:
#   MASTER=spark://spark:7077 deploy/spark/submit.sh ingest --namesrv ns-a:9876,ns-b:9876 --out /shared/routes
# Driver and executors run the same Python at the same path: that of the image of deploy/spark/Dockerfile, or PYTHON.
set -eu
PYTHON=${PYTHON:-/opt/route-pipeline/bin/python}
export PYSPARK_PYTHON="$PYTHON" PYSPARK_DRIVER_PYTHON="$PYTHON"
exec "$(dirname "$PYTHON")/spark-submit" \
  --master "${MASTER:?MASTER is the URL of the cluster, such as spark://spark:7077}" \
  --name route-pipeline \
  --conf spark.sql.session.timeZone=UTC \
  "$(dirname "$0")/job.py" "$@"
