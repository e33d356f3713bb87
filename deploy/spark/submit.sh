#!/bin/sh
# Submits examples/routes_to_log.py to a cluster, which appends what changed in the routes to a log:
#   MASTER=spark://spark:7077 deploy/spark/submit.sh ns-a:9878,ns-b:9878 /shared/routes /shared/routes-checkpoint
# Driver and executors run the same Python at the same path. It is PYTHON, else that of the image of
# deploy/spark/Dockerfile, of an active virtual environment, of .venv in this clone, or of route-pipeline on the PATH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
MASTER=${MASTER:?MASTER is the URL of the cluster, such as spark://spark:7077}

python_of_path() {
  program=$(command -v route-pipeline) && printf '%s\n' "$(dirname "$program")/python"
}

if [ -z "${PYTHON:-}" ]; then
  for candidate in /opt/route-pipeline/bin/python "${VIRTUAL_ENV:-/none}/bin/python" "$here/../../.venv/bin/python" \
    "$(python_of_path || true)"; do
    if [ -x "$candidate" ] && [ -x "$(dirname "$candidate")/spark-submit" ]; then
      PYTHON=$(cd "$(dirname "$candidate")" && pwd)/$(basename "$candidate")
      break
    fi
  done
fi
if [ -z "${PYTHON:-}" ] || [ ! -x "$(dirname "$PYTHON")/spark-submit" ]; then
  echo "submit.sh: no spark-submit beside ${PYTHON:-any Python}: pip install -e '.[spark]' in the clone, or set" \
    "PYTHON to a Python with the package, at the same path on every executor" >&2
  exit 2
fi
job=$here/routes_to_log.py
[ -f "$job" ] || job=$here/../../examples/routes_to_log.py
export PYSPARK_PYTHON="$PYTHON" PYSPARK_DRIVER_PYTHON="$PYTHON"
exec "$(dirname "$PYTHON")/spark-submit" \
  --master "$MASTER" \
  --name route-pipeline \
  --conf spark.sql.session.timeZone=UTC \
  "$job" "$@"
